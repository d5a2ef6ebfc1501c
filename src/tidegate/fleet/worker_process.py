"""A worker process of a replica: the user's handlers on its queue."""

from __future__ import annotations

import sys

from tidegate.client.connect import URL_VARIABLE
from tidegate.core.replication import logical_name
from tidegate.fleet.child_process import MACHINE_VARIABLE, ChildProcess

REPLICA_VARIABLE = "TIDEGATE_REPLICA"


class WorkerProcess(ChildProcess):
    """A `tidegate worker` that is bound to one replica."""

    def __init__(self, replica: str, target: str, node: str, machine_id: int, drain_s: float):
        self.replica = replica
        command = [sys.executable, "-m", "tidegate", "worker", target]
        command += ["--queues", logical_name(replica), "--drain", f"{drain_s:g}s"]
        environment = {
            REPLICA_VARIABLE: replica,
            MACHINE_VARIABLE: str(machine_id),
            URL_VARIABLE: node,
        }
        super().__init__(command, environment)

    @property
    def has_imported(self) -> bool:
        """Whether the user's module has been imported, or its import will not be announced."""
        return self.word is not None
