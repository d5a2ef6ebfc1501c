"""The capacity of one HTTP instance, learned offline from windows in which it was saturated.

    saturated    outstanding ≥ 0.9 · concurrency                        for a whole window
    capacity     of an instance the 90th percentile of such windows; of several the median

An instance with fewer requests than it may have shows the demand and not its capacity, so its rate
is only a lower bound. The capacity holds for the concurrency at which it was measured. With another
concurrency the instance may do more, and would take longer for each request.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core.term import Term

NEARLY_ALL = 0.9
BUSIEST = 0.9
# Half a minute of windows of five seconds; fewer are not trusted.
WINDOWS_MIN = 6


def is_saturated(outstanding: Term, concurrency: Term) -> Term:
    """Return whether an instance had nearly all the requests that it may have."""
    return outstanding >= concurrency * NEARLY_ALL


@dataclass(frozen=True)
class InstanceWork:
    """The measured work of one instance."""

    # Number of windows that were saturated throughout, and the 90th percentile of the rate in them.
    saturated_windows: int
    saturated_per_s: float
    # The largest rate in any window.
    most_per_s: float


@dataclass(frozen=True)
class SaturatedCapacity:
    """The learned capacity of an instance of a service, or the reason why it is not known."""

    accepted: bool
    reason: str
    # NaN means not known.
    per_s: float
    # The largest rate of any instance; a lower bound of the capacity.
    at_least_per_s: float
    instances: int


def saturated_capacity(service: str, work: Sequence[InstanceWork]) -> SaturatedCapacity:
    """Return the capacity of one instance of `service`, from the work of its instances."""
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
