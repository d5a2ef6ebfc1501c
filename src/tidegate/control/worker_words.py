"""What machines report about workers that do not start.

A machine reports everything that is wrong with it in one text; each part begins with the name of a
replica. The same worker may fail with a different text every few seconds. A text is therefore kept
for a while, because the journal would record every change as a new decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.core.fleet import MachineInfo
from tidegate.core.replication import replica_name
from tidegate.core.steering import ReplicaSample

# Seconds for which the text of a replica is kept.
_KEPT_S = 60.0


class WorkerWords:
    """Worker errors of the replicas of one queue that wait for their workers."""

    def __init__(self) -> None:
        # By replica number: since when, and the text.
        self._said: dict[int, tuple[float, str]] = {}

    def of(
        self,
        queue: str,
        waiting: Sequence[ReplicaSample],
        machines: Iterable[MachineInfo],
        now: float,
    ) -> list[str]:
        """Return the distinct reports about these replicas' workers; empty if there are none."""
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
    """Return the part of a machine's report about one replica; empty if there is none.

    It ends where the part of another replica of the same queue begins.
    """
    found = detail.find(f"{replica}: ")
    if found < 0:
        return ""
    logical = replica.rpartition("#")[0]
    return detail[found:].split(f"; {logical}#")[0]
