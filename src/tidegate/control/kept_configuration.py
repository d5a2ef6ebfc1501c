"""The part of a service's state that the next leader cannot see from the running instances.

During a rollout there may be one instance more than wanted, or exactly as many. The capacity of an
instance shows only while requests wait. Both values are therefore stored, before anything is
ordered. A leader that dies between two orders leaves a number that the next one can reach.
"""

from __future__ import annotations

import msgspec

# Relative change below which a capacity counts as unchanged.
_SAME = 0.05


class KeptConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted number and the measured capacity after the last decision."""

    wanted: int
    # Requests per second that one instance was measured to answer; None if not measured yet.
    capacity_per_s: float | None = None

    def is_news(self, before: KeptConfiguration | None) -> bool:
        """Return whether this differs enough from `before` to be stored."""
        if before is None or before.wanted != self.wanted:
            return True
        if self.capacity_per_s is None or before.capacity_per_s is None:
            return self.capacity_per_s != before.capacity_per_s
        return abs(self.capacity_per_s - before.capacity_per_s) > _SAME * before.capacity_per_s

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> KeptConfiguration | None:
        """Decode a stored document; None if another version wrote it in another form."""
        try:
            return msgspec.json.decode(document, type=KeptConfiguration)
        except msgspec.DecodeError:
            return None
