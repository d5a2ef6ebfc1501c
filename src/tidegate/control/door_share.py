"""The part of the admission limit that each door gets, by its recent requests.

    part = floor + share · (limit − floors)      share = its recent requests / those of all doors

One door may have ten times the clients of another. With even parts it would reject requests while
the part of the other door is unused. No door gets less than a floor, so that clients who move to a
quiet door are admitted until the shares reflect them. Every door computes the parts by itself from
the same samples. They add up to the limit, or to more if the floors of 1 need more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tidegate.core.hosting import DoorSample

# A door that has not reported for this many seconds has no part.
FRESH_S = 5.0
# Floor, as a part of an even share; it is 1 request at least.
FLOOR = 0.2
# Half-life of past requests, in seconds.
_HALF_S = 5.0


class DoorShares:
    """The recent request rates of the doors of one service."""

    def __init__(self) -> None:
        self._last: dict[str, DoorSample] = {}
        # Recent requests per second, by door.
        self._per_s: dict[str, float] = {}

    def part(
        self, in_flight_max: int | None, samples: Iterable[DoorSample], own: str, now: float
    ) -> int | None:
        """Return the part of the door called `own`; None if there is no limit."""
        fresh = {one.door: one for one in samples if one.at > now - FRESH_S}
        self._see(fresh)
        if in_flight_max is None:
            return None
        doors = sorted({own, *fresh})
        return parts(in_flight_max, {door: self._per_s.get(door, 0.0) for door in doors})[own]

    def _see(self, fresh: Mapping[str, DoorSample]) -> None:
        for door, sample in fresh.items():
            before = self._last.get(door)
            if before is not None and sample.at > before.at:
                # Totals of one door never decrease.
                interval_s = sample.at - before.at
                per_s = max(sample.accepted - before.accepted, 0) / interval_s
                known = self._per_s.get(door)
                old = 0.0 if known is None else 0.5 ** (interval_s / _HALF_S)
                self._per_s[door] = (1.0 - old) * per_s + old * (known or 0.0)
            self._last[door] = sample
        # A silent door is forgotten, and counts as a new one when it returns.
        self._last = {door: one for door, one in self._last.items() if door in fresh}
        self._per_s = {door: one for door, one in self._per_s.items() if door in fresh}


def parts(in_flight_max: int, asked_per_s: Mapping[str, float]) -> dict[str, int]:
    """Return the part of each door; even parts if none has requests."""
    doors = sorted(asked_per_s)
    # A part of 0 would close a door that the leader did not mean to close.
    floor = min(max(int(FLOOR * in_flight_max / len(doors)), 1), in_flight_max)
    left = max(in_flight_max - floor * len(doors), 0)
    total = math.fsum(asked_per_s.values())
    exact = {
        door: left * (asked_per_s[door] / total if total > 0.0 else 1.0 / len(doors))
        for door in doors
    }
    whole = {door: int(share) for door, share in exact.items()}
    # The remainder goes to the doors with the largest missing fraction, then by name.
    rest = sorted(doors, key=lambda door: (whole[door] - exact[door], door))
    for door in rest[: max(left - sum(whole.values()), 0)]:
        whole[door] += 1
    return {door: floor + share for door, share in whole.items()}
