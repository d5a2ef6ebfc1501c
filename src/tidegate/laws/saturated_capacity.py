"""What one instance of an HTTP service can do: what it did while it had all the requests it may.

    saturated    outstanding ≥ 0.9 · concurrency                        for a whole window
    capacity     of an instance the 90th percentile of such windows; of several the median

An instance with fewer requests than it may have does what clients ask and not what it can, so its
rate is a lower bound and no more. What an instance can do is that at the concurrency it had: with
another one it may do more, and would take longer for each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core.term import Term

NEARLY_ALL = 0.9
BUSIEST = 0.9
# Half a minute of windows of five seconds, before it is believed.
WINDOWS_MIN = 6


def is_saturated(outstanding: Term, concurrency: Term) -> Term:
    """Whether an instance had about as many requests as it may have."""
    return outstanding >= concurrency * NEARLY_ALL


@dataclass(frozen=True)
class InstanceWork:
    """What one instance did."""

    # Windows in which it was saturated throughout, and the 90th percentile of its rate in them.
    saturated_windows: int
    saturated_per_s: float
    # The most it did in any window.
    most_per_s: float


@dataclass(frozen=True)
class SaturatedCapacity:
    """What an instance of a service can do, or why that is not known."""

    accepted: bool
    reason: str
    # NaN when it is not known.
    per_s: float
    # The most that any was seen to do: it can do that much.
    at_least_per_s: float
    instances: int


def saturated_capacity(service: str, work: Sequence[InstanceWork]) -> SaturatedCapacity:
    """The capacity of one instance, of what those of its service did."""
    at_least = max((one.most_per_s for one in work), default=0.0)
    known = [one.saturated_per_s for one in work if one.saturated_windows >= WINDOWS_MIN]
    if not known:
        return SaturatedCapacity(
            accepted=False,
            reason=f"no instance of {service} was seen with all the requests it may have for half "
            f"a minute: one can do at least {at_least:.4g}/s, and what more is not known",
            per_s=math.nan,
            at_least_per_s=at_least,
            instances=0,
        )
    found = statistics.median(known)
    seen = "one instance" if len(known) == 1 else f"the median of {len(known)} instances"
    return SaturatedCapacity(
        accepted=True,
        reason=f"{found:.4g} requests/s by {seen} with all the requests that it may have",
        per_s=found,
        at_least_per_s=at_least,
        instances=len(known),
    )
