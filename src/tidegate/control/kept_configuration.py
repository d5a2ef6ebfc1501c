"""What the next leader is to know of a service: how many were to serve, and what one can do.

Neither can be told from what runs. In the middle of a rollout there may be one more than wanted or
just as many, and a capacity shows only while something waits. Kept in the store before anything is
ordered for it, so that a leader that dies between two orders leaves a number that can be finished.
"""

from __future__ import annotations

import msgspec

# A capacity that has moved by less is the same.
_SAME = 0.05


class KeptConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One service, as it was last decided about."""

    wanted: int
    # What one instance was seen to answer a second; None: nobody has seen it.
    capacity_per_s: float | None = None

    def is_news(self, before: KeptConfiguration | None) -> bool:
        """Whether it is worth keeping beside what is kept."""
        if before is None or before.wanted != self.wanted:
            return True
        if self.capacity_per_s is None or before.capacity_per_s is None:
            return self.capacity_per_s != before.capacity_per_s
        return abs(self.capacity_per_s - before.capacity_per_s) > _SAME * before.capacity_per_s

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> KeptConfiguration | None:
        """None: it was written by another version, and is not ours to guess."""
        try:
            return msgspec.json.decode(document, type=KeptConfiguration)
        except msgspec.DecodeError:
            return None
