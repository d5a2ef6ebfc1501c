"""Of the bound of all doors, the part of each: by what it was asked for lately.

    part = floor + share · (bound − floors)      share = its requests of late / those of all doors

One door may have ten times the clients of another. Even parts would have it refuse requests while
the other one's part lies idle. No door falls below a floor, so that who moves over to a quiet one
is let in until that shows in the shares. Every door works this out by itself, from the same
samples: parts add up to the bound, or to so much more as all floors of one need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tidegate.core.hosting import DoorSample

# A door that has not reported for so long has no part.
FRESH_S = 5.0
# Of an even part: what a door that is asked for nothing has, and 1 at least.
FLOOR = 0.2
# After so long what was asked for counts half.
_HALF_S = 5.0


class DoorShares:
    """What the doors of one service are asked for."""

    def __init__(self) -> None:
        self._last: dict[str, DoorSample] = {}
        # Requests a second of late.
        self._per_s: dict[str, float] = {}

    def part(
        self, in_flight_max: int | None, samples: Iterable[DoorSample], own: str, now: float
    ) -> int | None:
        """The part of the door called `own`; None: there is no bound."""
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
                # Totals of a door never run backwards.
                interval_s = sample.at - before.at
                per_s = max(sample.accepted - before.accepted, 0) / interval_s
                known = self._per_s.get(door)
                old = 0.0 if known is None else 0.5 ** (interval_s / _HALF_S)
                self._per_s[door] = (1.0 - old) * per_s + old * (known or 0.0)
            self._last[door] = sample
        # Who is silent is gone, and comes back as somebody new.
        self._last = {door: one for door, one in self._last.items() if door in fresh}
        self._per_s = {door: one for door, one in self._per_s.items() if door in fresh}


def parts(in_flight_max: int, asked_per_s: Mapping[str, float]) -> dict[str, int]:
    """Of each door; even ones where nobody is asked for anything."""
    doors = sorted(asked_per_s)
    # A part of nothing would shut a door that the leader has not meant to shut.
    floor = min(max(int(FLOOR * in_flight_max / len(doors)), 1), in_flight_max)
    left = max(in_flight_max - floor * len(doors), 0)
    total = math.fsum(asked_per_s.values())
    exact = {
        door: left * (asked_per_s[door] / total if total > 0.0 else 1.0 / len(doors))
        for door in doors
    }
    whole = {door: int(share) for door, share in exact.items()}
    # What does not divide goes to whom most of one is missing, by name where that is the same.
    rest = sorted(doors, key=lambda door: (whole[door] - exact[door], door))
    for door in rest[: max(left - sum(whole.values()), 0)]:
        whole[door] += 1
    return {door: floor + share for door, share in whole.items()}
