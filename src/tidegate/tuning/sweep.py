"""The sweep: measures the open loop at few prefetches, to find where the rate stops growing.

Each prefetch is √2 times the previous one. Each is held until two samples in a row agree, so
that a slow plant gets enough time and a fast one costs two samples. When three steps have gained
almost nothing, the knee is behind, and only the largest prefetch is still measured. If it gives
more after all, the skipped prefetches are measured too.
"""

from __future__ import annotations

import math

from tidegate.laws.linear_range import LinearRange, Shape, linear_range
from tidegate.tuning.record import NEARLY_ALL, OpenLoopPoint, Phase, Record
from tidegate.tuning.refusal import TuningRefused
from tidegate.tuning.sampling import Sampling
from tidegate.tuning.steps import sweep_prefetches
from tidegate.tuning.wish import Wish

# The rate grew by less than a tenth while the prefetch grew by a factor of 2.8.
FLAT_STEPS = 3
FLAT_GROWTH = 1.1
# Prefetches below the knee that a line needs, and the fraction of the way to the knee that is
# surely linear.
BELOW_KNEE_MIN = 4
SAFELY_BELOW = 0.9


async def sweep(sampling: Sampling, low: int, high: int) -> None:
    """Measure the open loop and add its points to the record."""
    points: list[OpenLoopPoint] = []
    skipped: list[int] = []
    for prefetch in sweep_prefetches(low, high):
        if prefetch < high and _is_flat(points):
            skipped.append(prefetch)
            continue
        points.append(await _point(sampling, prefetch))
    most_before = max(one.rate_per_s for one in points[:-1])
    if skipped and points[-1].rate_per_s > FLAT_GROWTH * most_before:
        for prefetch in skipped:
            await _point(sampling, prefetch)


def _is_flat(points: list[OpenLoopPoint]) -> bool:
    if len(points) <= FLAT_STEPS:
        return False
    return points[-1].rate_per_s < FLAT_GROWTH * points[-1 - FLAT_STEPS].rate_per_s


async def _point(sampling: Sampling, prefetch: int) -> OpenLoopPoint:
    rates = await sampling.rest(Phase.SWEEP, prefetch)
    if not rates:
        raise TuningRefused(
            f"at prefetch {prefetch} the queue was empty in every sample. {sampling.enough()}",
            sampling.record,
        )
    return sampling.record.add_point(prefetch, rates)


def range_to_excite(sampling: Sampling, wish: Wish) -> LinearRange:
    """Return the range in which the rate is linear in the prefetch and the target can be reached.

    Raises `TuningRefused` if there is no such range.
    """
    record = sampling.record
    ceiling = record.ceiling_per_s
    if ceiling <= 0.0:
        raise TuningRefused(
            "not one message arrived at any prefetch: is somebody else taking all of them, or is "
            "the queue paused?",
            record,
        )
    enough = record.prefetch_of(NEARLY_ALL)
    found = linear_range(record.levels())
    if found.shape is Shape.SATURATED or enough < wish.low + BELOW_KNEE_MIN - 1:
        lowest = record.open_loop[0]
        raise TuningRefused(
            f"prefetch does not matter here: {lowest.prefetch} already gives "
            f"{lowest.rate_per_s:.0f} of {ceiling:.0f} msg/s, which is the most at any prefetch up "
            f"to {wish.high}. A fixed prefetch of {enough} is right, and there is nothing to "
            "steer; a higher rate needs a faster handler or more consumers",
            record,
        )
    if found.shape is Shape.UNKNOWN:
        raise TuningRefused(found.reason, record)
    _check_target(wish, found, record)
    if found.shape is Shape.LINEAR:
        return found
    # The steps of the sweep are coarse, so the knee is where the line meets the ceiling.
    lowest = record.open_loop[0]
    knee = lowest.prefetch + (ceiling - lowest.rate_per_s) / found.slope
    high = min(math.floor(SAFELY_BELOW * knee), record.prefetch_of(NEARLY_ALL), wish.high)
    high = max(high, wish.low + BELOW_KNEE_MIN - 1)
    return LinearRange(
        found.shape, found.low, float(high), found.slope, found.slope_beyond, found.reason
    )


def _check_target(wish: Wish, found: LinearRange, record: Record) -> None:
    target, ceiling = wish.target_per_s, record.ceiling_per_s
    if target > ceiling:
        if found.shape is Shape.LINEAR:
            advice = (
                f"at prefetch {wish.high}, and the rate still grows with it: allow more with --to"
            )
        else:
            advice = (
                f"from prefetch {record.prefetch_of(NEARLY_ALL)} on. Ask for less than that, make "
                "the handler faster, or add consumers"
            )
        raise TuningRefused(
            f"{target:g} msg/s is above the ceiling: {ceiling:.0f} msg/s was the most, {advice}"
        )
    lowest = record.open_loop[0]
    if target < NEARLY_ALL * lowest.rate_per_s:
        less = "set a lower --from" if wish.low > 1 else "a prefetch cannot be smaller than 1"
        raise TuningRefused(
            f"{target:g} msg/s is below what prefetch {lowest.prefetch} gives already, "
            f"{lowest.rate_per_s:.0f} msg/s: {less}; what is to be slower than that has to be "
            "slowed down in its handler or at its producers"
        )
