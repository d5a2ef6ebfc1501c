"""What workers that do not come have said, as their machines report it.

A machine reports what is wrong with it in one text, each part under the name of its replica. The
same worker may die with other words every few seconds; people are told the first, and others now
and then, for whatever differs is written down again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.core.fleet import MachineInfo
from tidegate.core.replication import replica_name
from tidegate.core.steering import ReplicaSample

# So long the words of a replica stay.
_KEPT_S = 60.0


class WorkerWords:
    """Of the replicas of one queue that wait for their workers."""

    def __init__(self) -> None:
        # By number of the replica: since when, and what.
        self._said: dict[int, tuple[float, str]] = {}

    def of(
        self,
        queue: str,
        waiting: Sequence[ReplicaSample],
        machines: Iterable[MachineInfo],
        now: float,
    ) -> list[str]:
        """Why the workers of these replicas do not come, as far as anybody has said."""
        details = {machine.machine_id: machine.detail for machine in machines}
        kept: dict[int, tuple[float, str]] = {}
        for replica in waiting:
            since, words = self._said.get(replica.number, (now, ""))
            if not words or now - since >= _KEPT_S:
                detail = details.get(replica.machine_id or 0, "")
                since, words = now, _part(detail, replica_name(queue, replica.number))
            if words:
                kept[replica.number] = since, words
        self._said = kept
        return list(dict.fromkeys(words for _, words in kept.values()))


def _part(detail: str, replica: str) -> str:
    """What is said about one replica; it ends where another part begins, if that can be seen."""
    found = detail.find(f"{replica}: ")
    if found < 0:
        return ""
    logical = replica.rpartition("#")[0]
    return detail[found:].split(f"; {logical}#")[0]
