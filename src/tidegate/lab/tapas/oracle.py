"""The instance-seconds of an oracle that knows the number of clients and starts instances at once.

    needed(t) = ceil(clients(t) · service_s / (concurrency · breach_s)), within the agreed bounds

Clients that never pause always have a request in progress, and n instances answer
n · concurrency / service_s requests per second. So this is the smallest number of instances whose
mean response time is at most the breaching point. An oracle that keeps the 95th percentile would
need at least as many.
"""

from __future__ import annotations

import math

from tidegate.lab.tapas.bookshop import ShopSetting
from tidegate.lab.tapas.clients import Visit
from tidegate.lab.tapas.hosted import Crew

_STEP_S = 0.1


def needed(clients: int, shop: ShopSetting, breach_s: float, low: int, high: int) -> int:
    """Return the oracle's number of instances for a number of clients."""
    asked = math.ceil(clients * shop.seconds_per_operation / breach_s - 1e-9)
    return min(max(asked, low), high)


def oracle_seconds(visit: Visit, shop: ShopSetting, breach_s: float, low: int, high: int) -> float:
    """Return the oracle's instance-seconds from the first client to the last."""
    steps = int((visit.ended_at - visit.began_at) / _STEP_S)
    return sum(
        _STEP_S
        * needed(visit.present_at(visit.began_at + step * _STEP_S), shop, breach_s, low, high)
        for step in range(steps)
    )


def paid_seconds(crews: list[Crew], begin_s: float, end_s: float) -> float:
    """Return the paid instance-seconds of a period; each count holds until the next one."""
    total_s = 0.0
    for one, following in zip(crews, [*crews[1:], None], strict=True):
        until = end_s if following is None else min(following.at, end_s)
        total_s += max(until - max(one.at, begin_s), 0.0) * one.paid
    return total_s
