"""What an oracle would have taken: it knows how many clients are there, and starts in no time.

    needed(t) = ceil(clients(t) · service_s / (concurrency · breach_s)), within the agreed bounds

Clients that never pause are all in hand, and n instances answer n · concurrency / service_s a
second, so that is the fewest whose mean response lies at the breaching point or below. An oracle
that had to mind the 95th percentile would take no fewer.
"""

from __future__ import annotations

import math

from tidegate.lab.tapas.bookshop import ShopSetting
from tidegate.lab.tapas.clients import Visit
from tidegate.lab.tapas.hosted import Crew

_STEP_S = 0.1


def needed(clients: int, shop: ShopSetting, breach_s: float, low: int, high: int) -> int:
    asked = math.ceil(clients * shop.seconds_per_operation / breach_s - 1e-9)
    return min(max(asked, low), high)


def oracle_seconds(visit: Visit, shop: ShopSetting, breach_s: float, low: int, high: int) -> float:
    """Of all instances, while clients were there."""
    steps = int((visit.ended_at - visit.began_at) / _STEP_S)
    return sum(
        _STEP_S
        * needed(visit.present_at(visit.began_at + step * _STEP_S), shop, breach_s, low, high)
        for step in range(steps)
    )


def paid_seconds(crews: list[Crew], begin_s: float, end_s: float) -> float:
    """Of all instances that were there in this time; each look holds until the next."""
    total_s = 0.0
    for one, following in zip(crews, [*crews[1:], None], strict=True):
        until = end_s if following is None else min(following.at, end_s)
        total_s += max(until - max(one.at, begin_s), 0.0) * one.paid
    return total_s
