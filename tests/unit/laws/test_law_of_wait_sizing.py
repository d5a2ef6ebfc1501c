"""Sizing by a promise: enough for what comes and what waits, ahead of the warning, and no more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.reasons import otherwise_text, reason_text
from tidegate.laws.scaling import Proposal, QueueSituation
from tidegate.laws.scaling.wait import DEFAULT_WAIT_LAW_SETTINGS, WaitLaw, WaitTarget, usable_part

PLEDGE = WaitTarget(wait_s=4.8, metric="wait_p99")

rates = st.floats(0.0, 1e5)
waits = st.integers(0, 10**7)
capacities = st.floats(0.1, 1e4)
promised = st.floats(0.05, 3600.0)


def now(serving: int, arrived: float, **rest: object) -> QueueSituation:
    figures = {"at": 0.0, "capacity_per_s": 100.0, "consumed_per_s": arrived, **rest}
    return QueueSituation(serving=serving, arrived_per_s=arrived, **figures)  # type: ignore[arg-type]


def wished(situation: QueueSituation, pledge: WaitTarget = PLEDGE) -> Proposal:
    return WaitLaw(pledge).step(situation)


def test_a_standing_rate_needs_the_replicas_worked_out_by_hand() -> None:
    # 95 of 100 msg/s are planned with: 4 replicas do 380.
    assert wished(now(4, 379.0)).replicas == 4
    assert wished(now(4, 400.0, at=0.0)).replicas >= 5


def test_a_backlog_is_worked_off_before_what_comes_last_would_be_warned_of() -> None:
    # 1 000 messages before what comes: 100 replicas-seconds of work within an aim of 2.4 s.
    found = wished(now(1, 100.0, waiting=1000, start_s=0.0))
    assert found.replicas == math.ceil((100.0 + 1000.0 / 2.4) / 95.0)
    assert "wait_p99 warns at 4.8 s" in reason_text(found.reasons)


def test_wait_law_adds_replicas_for_the_agreed_growth() -> None:
    growing = PLEDGE._replace(growth_per_s2=20.0)
    # In the 5 s until a replica serves it may grow by 100 msg/s.
    assert wished(now(2, 180.0)).replicas == 2
    assert wished(now(2, 180.0), growing).replicas >= 3


def test_an_old_message_brings_a_replica_although_the_rate_asks_for_none() -> None:
    found = wished(now(2, 50.0, oldest_age_s=2.5))
    assert (found.replicas, found.rule) == (3, "oldest age at the aim")
    assert wished(now(2, 50.0, oldest_age_s=2.5, inhibited=True)).replicas <= 2


def test_without_a_capacity_the_wait_by_what_is_consumed_speaks() -> None:
    found = wished(now(1, 50.0, capacity_per_s=None, consumed_per_s=40.0, waiting=120))
    assert found.replicas == 2
    assert found.rule.startswith("capacity unknown")


def test_slow_messages_need_more_room_than_quick_ones() -> None:
    # ln(100) / 4.8 s are about 1 msg/s of room.
    assert usable_part(PLEDGE, 100.0, DEFAULT_WAIT_LAW_SETTINGS) == 0.95
    assert usable_part(PLEDGE, 4.0, DEFAULT_WAIT_LAW_SETTINGS) == pytest.approx(
        1 - 0.9594 / 4.0, abs=1e-3
    )
    assert usable_part(PLEDGE, 1.0, DEFAULT_WAIT_LAW_SETTINGS) == 0.5


def test_a_replica_goes_when_the_peak_is_forgotten_and_not_while_the_agreement_is_in_danger() -> (
    None
):
    law = WaitLaw(PLEDGE)
    law.step(now(4, 350.0, at=0.0))
    assert law.step(now(4, 100.0, at=30.0)).replicas == 4
    law.target = PLEDGE._replace(endangered=True)
    held = law.step(now(4, 100.0, at=100.0))
    assert (held.replicas, held.rule) == (4, "held: the agreement is in danger")
    law.target = PLEDGE
    assert law.step(now(4, 100.0, at=101.0)).replicas == 2


def test_a_load_that_swings_about_a_whole_number_of_replicas_moves_nothing_twice() -> None:
    law, count, changes = WaitLaw(PLEDGE), 3, 0
    for second in range(1200):
        rate = 285.0 + 12.0 * math.sin(second / 20.0)
        wanted = law.step(now(count, rate, at=float(second))).replicas
        changes += wanted != count
        count = wanted
    assert changes <= 1


def test_a_removal_is_decided_by_what_those_that_stay_can_do() -> None:
    def wanted(*of_fewer: float) -> int:
        law = WaitLaw(PLEDGE)
        for second in range(100):
            situation = now(3, 80.0, at=float(second), capacity_of_fewer_per_s=of_fewer)
            wish = law.step(situation)
        return wish.replicas

    # 100 msg/s each on average; who would be left alone does as much, or 60.
    assert wanted() == 1
    assert wanted(100.0, 100.0, 100.0) == 1
    assert wanted(60.0, 80.0, 100.0) == 2
    # Of two that do 30 each, neither may go; nor may a third of them that does more.
    assert wanted(30.0, 30.0, 100.0) == 3


@given(
    st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=12),
    st.floats(0.0, 1.2),
    waits,
    promised,
    st.floats(0.0, 50.0),
    st.floats(0.0, 120.0),
    st.integers(0, 4),
)
def test_wait_law_does_not_reverse_a_removal_on_the_same_input(
    each: list[float],
    load: float,
    waiting: int,
    wait_s: float,
    growth_per_s2: float,
    boot_s: float,
    slots_free: int,
) -> None:
    """Replicas that are not alike, on a load and a backlog that stand."""
    law, count, counts = (
        WaitLaw(WaitTarget(wait_s=wait_s, growth_per_s2=growth_per_s2)),
        len(each),
        [],
    )
    means = [sum(each[:few]) / few for few in range(1, count + 1)]
    rate = load * sum(each)
    for second in range(0, 600, 20):
        wish = law.step(
            now(
                count,
                rate,
                at=float(second),
                waiting=waiting,
                capacity_per_s=means[count - 1],
                capacity_of_fewer_per_s=tuple(means[:count]),
                boot_s=boot_s,
                slots_free=slots_free,
            )
        )
        # There are no more to be had.
        count = min(wish.replicas, count if not counts else max(counts))
        if not counts or counts[-1] != count:
            counts.append(count)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] >= 1


@given(rates, waits, capacities, promised, st.integers(0, 50), st.floats(0.0, 600.0))
def test_wait_law_proposes_a_possible_number(
    rate: float, waiting: int, capacity: float, wait_s: float, serving: int, lead_s: float
) -> None:
    found = wished(
        now(serving, rate, waiting=waiting, capacity_per_s=capacity, boot_s=lead_s),
        WaitTarget(wait_s=wait_s),
    )
    assert 0 <= found.replicas <= 1_000_001
    assert reason_text(found.reasons)
    assert otherwise_text(found.reasons)


@given(rates, waits, capacities, promised, st.integers(1, 50))
def test_with_what_it_wants_nothing_piles_up(
    rate: float, waiting: int, capacity: float, wait_s: float, serving: int
) -> None:
    wanted = wished(
        now(serving, rate, waiting=waiting, capacity_per_s=capacity), WaitTarget(wait_s=wait_s)
    ).replicas
    assert wanted >= min(rate / capacity, 1_000_000) - 1e-6


@given(rates, waits, capacities, st.floats(5.0, 3600.0), st.integers(1, 50))
def test_proposed_replicas_keep_the_wait_below_the_warning(
    rate: float, waiting: int, capacity: float, wait_s: float, serving: int
) -> None:
    situation = now(serving, rate, waiting=waiting, capacity_per_s=capacity)
    wanted = wished(situation, WaitTarget(wait_s=wait_s)).replicas
    ahead = max(waiting + (rate - capacity * serving) * situation.start_s, 0.0)
    if 0 < wanted < 1_000_000:
        assert ahead / (wanted * capacity) < wait_s


@given(rates, waits, st.integers(0, 10**6), capacities, promised, st.integers(1, 20))
def test_more_that_waits_never_asks_for_fewer(
    rate: float, waiting: int, more: int, capacity: float, wait_s: float, serving: int
) -> None:
    def wanted(messages: int) -> int:
        situation = now(serving, rate, waiting=messages, capacity_per_s=capacity)
        return wished(situation, WaitTarget(wait_s=wait_s)).replicas

    assert wanted(waiting + more) >= wanted(waiting)


@given(rates, waits, capacities, promised, st.floats(1.0, 10.0), st.integers(1, 20))
def test_of_two_promises_that_can_be_kept_the_stricter_one_never_asks_for_fewer(
    rate: float, waiting: int, capacity: float, wait_s: float, looser: float, serving: int
) -> None:
    # A replica serves in time for both.
    situation = now(
        serving, rate, waiting=waiting, capacity_per_s=capacity, start_s=wait_s, boot_s=wait_s
    )
    strict = wished(situation, WaitTarget(wait_s=wait_s)).replicas
    assert strict >= wished(situation, WaitTarget(wait_s=wait_s * looser)).replicas


def test_a_promise_that_no_replica_can_keep_any_more_only_works_off_what_waits() -> None:
    # 81 messages wait. In 5 s, when a new replica would serve, 31 of them are still there.
    situation = now(1, 0.0, waiting=81, capacity_per_s=10.0, start_s=5.0, boot_s=5.0)
    # One replica works 31 off in the next 5 s: 2 s are over before a second one could help.
    assert wished(situation, WaitTarget(wait_s=2.0)).replicas == 1
    # 6 s can be kept, and 31 messages are 3.1 s of one replica: more than half of the promise.
    assert wished(situation, WaitTarget(wait_s=6.0)).replicas == 2
