"""What an instance can do is known of those that were full, and of others a lower bound."""

from __future__ import annotations

import math

from tidegate.laws.http.sizing import InstanceWork, is_saturated, saturated_capacity


def test_full_ones_say_what_one_can_do_and_their_median_counts() -> None:
    work = [InstanceWork(9, rate, rate + 5.0) for rate in (60.0, 70.0, 20.0)]

    found = saturated_capacity("shop", [*work, InstanceWork(2, 500.0, 600.0)])

    assert (found.accepted, found.per_s, found.instances) == (True, 60.0, 3)
    assert "median of 3 instances" in found.reason


def test_unsaturated_instances_give_only_a_lower_bound() -> None:
    found = saturated_capacity("shop", [InstanceWork(5, 40.0, 44.0), InstanceWork(0, 0.0, 12.0)])

    assert not found.accepted
    assert math.isnan(found.per_s)
    assert found.at_least_per_s == 44.0
    assert "at least 44/s" in found.reason
    assert saturated_capacity("shop", []).at_least_per_s == 0.0


def test_nearly_all_is_full() -> None:
    assert is_saturated(9, 10)
    assert not is_saturated(8, 10)
