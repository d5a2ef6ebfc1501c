"""How many instances: enough, and none too many; what one can do; where the load will be."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.laws.http.sizing import (
    INSTANCES_MAX,
    NO_TARGETS,
    TAIL_MAX,
    TAIL_MIN,
    InstanceCapacity,
    InstanceRate,
    LoadTrend,
    ResponseTargets,
    ScaleIn,
    ServiceLoad,
    TailRatio,
    in_hand_max,
    needed_instances,
    needed_instances_with_reserve,
    typical_capacity,
)

numbers = st.floats(0.0, 1e4)
capacities = st.floats(0.1, 1e3)
targets = st.floats(0.01, 60.0)
points = st.builds(ResponseTargets, target_s=targets, limit_s=targets)
loads = st.builds(
    ServiceLoad,
    in_hand=numbers,
    answered_per_s=numbers,
    in_hand_ahead=numbers,
    is_open=st.sampled_from([True, False, None]),
)


@given(loads, capacities, points)
def test_as_many_as_needed_hold_and_one_fewer_does_not(
    load: ServiceLoad, capacity: float, points: ResponseTargets
) -> None:
    count = needed_instances(load, capacity, points)

    def holds(instances: int, slack: float) -> bool:
        can = instances * capacity * slack
        in_time = load.in_hand <= can * points.target_s
        ahead = load.in_hand_ahead <= can * points.limit_s
        kept_up = load.answered_per_s <= 0.85 * can or load.in_hand <= instances
        return in_time and ahead and (kept_up or not load.is_open)

    assert holds(count, 1 + 1e-6) or count in (0, INSTANCES_MAX)
    assert count == 0 or not holds(count - 1, 1 - 1e-6)


@given(loads, capacities, points, st.floats(1.0, 10.0))
def test_more_load_never_needs_fewer_and_more_capacity_never_more(
    load: ServiceLoad, capacity: float, points: ResponseTargets, factor: float
) -> None:
    more = ServiceLoad(
        load.in_hand * factor,
        load.answered_per_s * factor,
        load.in_hand_ahead * factor,
        load.is_open,
    )
    later = ResponseTargets(points.target_s * factor, points.limit_s * factor)
    assert needed_instances(more, capacity, points) >= needed_instances(load, capacity, points)
    assert needed_instances(load, capacity * factor, points) <= needed_instances(
        load, capacity, points
    )
    assert needed_instances(load, capacity, later) <= needed_instances(load, capacity, points)


@given(loads, capacities, points)
def test_instances_with_reserve_are_at_least_the_needed_ones(
    load: ServiceLoad, capacity: float, points: ResponseTargets
) -> None:
    assert needed_instances_with_reserve(load, capacity, points) >= needed_instances(
        load, capacity, points
    )


@given(st.floats(0.1, 1e3), targets)
def test_admitted_requests_are_answered_before_the_breach(capacity: float, breach_s: float) -> None:
    most = in_hand_max(capacity, breach_s)
    assert most >= 1
    assert most == 1 or most / capacity <= breach_s * (1 + 1e-6)


def test_clients_who_wait_for_answers_do_not_call_for_instances_forever() -> None:
    """Ten of them keep three instances busy, and one is enough for them."""
    at = ResponseTargets(target_s=0.64, limit_s=0.76)
    assert needed_instances(ServiceLoad(10.0, 40.0, is_open=False), 16.0, at) == 1
    assert needed_instances(ServiceLoad(10.0, 40.0, is_open=True), 16.0, at) == 3
    # Nothing is promised of responses: what comes is kept up with, and no more can be said.
    assert needed_instances(ServiceLoad(10.0, 40.0, is_open=True), 16.0, NO_TARGETS) == 3


def test_between_warning_and_breach_there_is_time_to_reconfigure() -> None:
    """What is in hand now must not warn; what will be in hand must not breach."""
    at = ResponseTargets(target_s=0.64, limit_s=0.76)
    assert needed_instances(ServiceLoad(10.0, 16.0, in_hand_ahead=12.0), 16.0, at) == 1
    assert needed_instances(ServiceLoad(10.0, 16.0, in_hand_ahead=13.0), 16.0, at) == 2
    assert needed_instances(ServiceLoad(11.0, 16.0, in_hand_ahead=11.0), 16.0, at) == 2


def test_without_a_capacity_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="capacity"):
        needed_instances(ServiceLoad(1.0, 1.0), 0.0, NO_TARGETS)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(0, 9)), min_size=1, max_size=60))
def test_instance_is_removed_only_if_fewer_sufficed_for_the_cooldown(
    steps: list[tuple[float, int]],
) -> None:
    scale_in, at, seen = ScaleIn(cooldown_s=10.0), 0.0, []
    for step_s, wanted in steps:
        at += step_s
        scale_in.observe(at, wanted)
        seen.append((at, wanted))
        lately = [one for when, one in seen if when >= at - 10.0]
        for count in range(10):
            is_over = seen[0][0] + 10.0 - at <= 0.0
            assert scale_in.may_go(at, count) == (is_over and max(lately) <= count - 1)


def test_a_change_begins_the_cool_down_anew() -> None:
    scale_in = ScaleIn(cooldown_s=10.0)
    scale_in.observe(0.0, 1)
    scale_in.observe(10.0, 1)
    assert scale_in.may_go(10.0, 2)
    scale_in.restart(10.0)
    assert not scale_in.may_go(10.0, 2)
    scale_in.observe(15.0, 1)
    assert not scale_in.may_go(15.0, 2)
    scale_in.observe(20.0, 1)
    assert scale_in.may_go(20.0, 2)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), max_size=50))
def test_a_tail_stays_within_its_bounds(seen: list[tuple[float, float]]) -> None:
    tail = TailRatio()
    for percentile_s, mean_s in seen:
        tail.observe(percentile_s, mean_s)
    assert TAIL_MIN <= tail.value <= TAIL_MAX


def rate(
    answered: int, before: int, now: int, response_s: float = 0.25, limit: int = 4
) -> InstanceRate:
    return InstanceRate(1.0, answered, before, now, limit, response_s)


def test_capacity_is_what_was_answered_while_something_waited() -> None:
    capacity = InstanceCapacity()
    for _ in range(10):
        capacity.observe(rate(3, 0, 1))
    assert capacity.per_s is None
    for _ in range(4):
        capacity.observe(rate(16, 4, 4))
    assert capacity.per_s == 16.0
    # Little to do afterwards says nothing about what it can do.
    for _ in range(100):
        capacity.observe(rate(1, 0, 1))
    assert capacity.per_s == 16.0


def test_capacity_follows_a_lasting_slowdown() -> None:
    capacity = InstanceCapacity()
    for _ in range(4):
        capacity.observe(rate(30, 4, 4))
    capacity.observe(rate(10, 4, 4))
    assert capacity.per_s is not None
    assert capacity.per_s > 29.0
    # A moment is forgotten; what stays so is believed.
    for _ in range(12):
        capacity.observe(rate(10, 4, 4))
    assert capacity.per_s < 11.0
    # What it did before it became another proves nothing of it.
    assert capacity.proven_per_s is not None
    assert capacity.proven_per_s < 11.0


def test_capacity_follows_a_small_decrease_slowly() -> None:
    capacity = InstanceCapacity()
    for _ in range(4):
        capacity.observe(rate(30, 4, 4))
    for _ in range(20):
        capacity.observe(rate(26, 4, 4))
    assert capacity.per_s is not None
    assert 27.0 < capacity.per_s < 30.0
    for _ in range(200):
        capacity.observe(rate(26, 4, 4))
    assert capacity.per_s < 26.5


def test_capacity_ignores_an_instance_without_answers() -> None:
    new, known = InstanceCapacity(), InstanceCapacity()
    for _ in range(4):
        known.observe(rate(30, 4, 4))
    for _ in range(20):
        new.observe(rate(0, 4, 4))
        known.observe(rate(0, 4, 4))
    assert new.per_s is None
    assert known.per_s is not None
    assert known.per_s > 0.9 * 30.0
    # In what it did when it went on its standstill has no part.
    for _ in range(2):
        new.observe(rate(30, 4, 4))
    assert new.per_s == 30.0


def test_capacity_rises_with_the_answers_without_a_backlog() -> None:
    """A bound that was made for a slow one lets nothing wait; it must not stay slow for that."""
    capacity = InstanceCapacity()
    for _ in range(4):
        capacity.observe(rate(1, 100, 100, limit=100))
    assert capacity.per_s == 1.0
    for _ in range(4):
        capacity.observe(rate(12, 1, 0, limit=100))
    assert capacity.per_s == 12.0


def test_a_burst_of_answers_is_no_capacity() -> None:
    capacity = InstanceCapacity()
    for _ in range(8):
        capacity.observe(rate(16, 4, 4))
    capacity.observe(rate(48, 4, 4))
    assert capacity.per_s is not None
    assert capacity.per_s <= 24.0


def test_capacity_detects_saturation_below_the_concurrency_limit() -> None:
    capacity = InstanceCapacity()
    capacity.observe(rate(20, 1, 1, response_s=0.05, limit=100))
    for _ in range(4):
        capacity.observe(rate(20, 10, 10, response_s=0.5, limit=100))
    assert capacity.per_s == 20.0
    # 20/s of 0.05 s each are one at a time; a hundred only wait inside.
    assert capacity.knee == 2 or capacity.knee == 1


def test_a_slow_one_says_nothing_about_the_next() -> None:
    assert typical_capacity([16.0, 5.0, None, 17.0]) == 16.0
    assert typical_capacity([None, None]) is None


def test_a_ramp_is_looked_ahead_of_and_a_step_is_not() -> None:
    ramp, step = LoadTrend(), LoadTrend()
    for second in range(8):
        ramp.observe(float(second), 10.0 + 2.0 * second)
        step.observe(float(second), 10.0 if second < 6 else 20.0)
    assert ramp.growth_per_s == 2.0
    assert ramp.ahead(3.0) == 24.0 + 6.0
    assert step.growth_per_s == 0.0
    assert step.ahead(3.0) == 20.0


@given(st.lists(st.floats(0.0, 1e4), max_size=30), st.floats(0.0, 100.0))
def test_predicted_load_is_at_most_twice_the_present_load(
    values: list[float], lead_s: float
) -> None:
    trend = LoadTrend()
    for second, value in enumerate(values):
        trend.observe(float(second), value)
    assert 0.0 <= trend.in_hand <= trend.ahead(lead_s) <= 2.0 * trend.in_hand + 1e-9


def test_how_the_load_moves_tells_whether_it_comes_by_itself() -> None:
    random_ = random.Random(7)
    closed, arriving, few = LoadTrend(), LoadTrend(), LoadTrend()
    for second in range(30):
        closed.observe(float(second), (10.0 if second < 20 else 30.0) + random_.choice((-1, 0, 0)))
        arriving.observe(float(second), max(random_.gauss(20.0, math.sqrt(20.0)), 0.0))
        few.observe(float(second), 1.0)
    assert closed.is_open is False
    assert arriving.is_open is True
    assert few.is_open is None
