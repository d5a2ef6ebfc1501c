"""Flow control: hand-computed shares, and what holds whatever is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.decisions import ReplicaSample
from tidegate.core.topology import ReplicaState
from tidegate.laws.routing import ShareSettings, next_shares, shares_differ

PAPER = ShareSettings(gain=1.0, probe=0.0)
SERVING, DRAINING = ReplicaState.SERVING, ReplicaState.DRAINING


def replica(number: int, consumed: float, waiting: int, **rest: object) -> ReplicaSample:
    return ReplicaSample(
        number=number,
        consumed_per_s=consumed,
        waiting=waiting,
        **{"age_s": 100.0, "share": 0.5, **rest},  # type: ignore[arg-type]
    )


def test_the_papers_formula_by_hand() -> None:
    # l_avg = 60; 100 − 40 = 60, 100 + 40 = 140, of 200.
    shares = next_shares([replica(1, 100, 100), replica(2, 100, 20)], 1.0, flow=PAPER)
    assert shares == pytest.approx({1: 0.3, 2: 0.7})


def test_after_clipping_the_rest_is_shared_among_the_others() -> None:
    # l_avg = 220; 100 − 380 < 0; 100 + 120 and 50 + 260: 220/530 and 310/530.
    shares = next_shares(
        [replica(1, 100, 600), replica(2, 100, 100), replica(3, 50, 10)],
        1.0,
        flow=ShareSettings(gain=1.0, probe=0.0),
    )
    l_avg = 710 / 3
    second, third = 100 - (100 - l_avg), 50 - (10 - l_avg)
    assert shares == pytest.approx(
        {1: 0.0, 2: second / (second + third), 3: third / (second + third)}
    )


def test_a_clipped_replica_keeps_a_little_to_be_measured_by() -> None:
    shares = next_shares([replica(1, 10, 1000), replica(2, 100, 10)], 1.0)
    assert shares[1] == pytest.approx(0.05 / 2)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_rates_count_per_period() -> None:
    # In 10 s each consumes 1 000; a difference of 80 is little.
    shares = next_shares([replica(1, 100, 100), replica(2, 100, 20)], 10.0, flow=PAPER)
    assert shares == pytest.approx({1: 0.48, 2: 0.52})


def test_shares_are_equal_without_consumption() -> None:
    shares = next_shares([replica(1, 0, 5), replica(2, 0, 500)], 1.0, flow=PAPER)
    assert shares == pytest.approx({1: 0.5, 2: 0.5})
    assert next_shares([replica(1, 0, 0), replica(2, 0, 0)], 1.0) == {1: 0.5, 2: 0.5}


def test_an_idle_replica_counts_with_what_it_could_do() -> None:
    # The second gets 10 msg/s and waits for more; it was seen to do 300.
    idle = replica(2, 10, 0, waiting_consumers=1)
    assert next_shares([replica(1, 100, 0), idle], 1.0, {1: 100.0, 2: 300.0}, flow=PAPER) == (
        pytest.approx({1: 0.25, 2: 0.75})
    )


def test_a_new_replica_starts_at_the_average_share() -> None:
    shares = next_shares(
        [replica(1, 150, 40), replica(2, 50, 40), replica(3, 0, 40, age_s=0.5, consumers=1)],
        1.0,
        flow=PAPER,
    )
    assert shares == pytest.approx({1: 0.5, 2: 1 / 6, 3: 1 / 3})


def test_a_replica_that_nobody_consumes_from_gets_nothing_while_others_are_attended() -> None:
    lonely = replica(2, 0, 30)
    assert next_shares([replica(1, 100, 10), lonely], 1.0) == {1: 1.0, 2: 0.0}
    assert next_shares([replica(1, 0, 10), lonely], 1.0) == {1: 0.5, 2: 0.5}


def test_an_unreachable_replicas_share_goes_to_the_others() -> None:
    away = replica(2, 100, 0, reachable=False)
    assert next_shares([replica(1, 100, 10), away], 1.0) == {1: 1.0, 2: 0.0}
    assert next_shares([away], 1.0) == {2: 0.0}


def test_a_draining_replicas_share_goes_down_step_by_step_to_nothing() -> None:
    share = 0.5
    seen = []
    while share > 0.0:
        going = replica(2, 100, 10, state=DRAINING, share=share)
        shares = next_shares([replica(1, 100, 10), going], 1.0)
        assert sum(shares.values()) == pytest.approx(1.0)
        share = shares[2]
        seen.append(share)
    assert seen == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


def test_a_late_sample_takes_as_many_steps_as_periods_have_passed() -> None:
    going = replica(2, 100, 10, state=DRAINING, share=0.5)
    others = replica(1, 100, 10)
    assert next_shares([others, going], 1.0, periods=3) == pytest.approx({1: 0.8, 2: 0.2})
    assert next_shares([others, going], 1.0, periods=50) == {1: 1.0, 2: 0.0}


def test_draining_replica_keeps_its_share_until_another_is_reachable() -> None:
    going = replica(1, 100, 10, state=DRAINING, share=0.4)
    away = replica(2, 100, 0, reachable=False)
    assert next_shares([going, away], 1.0) == {1: 1.0, 2: 0.0}
    # All are to go: the alias keeps what comes.
    assert next_shares([going], 1.0) == {1: 0.0}


def test_in_a_period_of_exchange_lengths_do_not_count() -> None:
    replicas = [replica(1, 100, 900), replica(2, 300, 20)]
    assert next_shares(replicas, 1.0, correct_lengths=False) == pytest.approx({1: 0.25, 2: 0.75})


def test_shares_follow_a_change_of_speed_within_two_periods() -> None:
    """500 msg/s in; the second falls from 300 to 100 msg/s; then lengths even out."""
    shares = {1: 0.5, 2: 0.5}
    waiting = {1: 50.0, 2: 50.0}
    speed = {1: 300.0, 2: 100.0}
    for period in range(12):
        done = {}
        for number in (1, 2):
            there = waiting[number] + 500.0 * shares[number]
            done[number] = min(speed[number], there)
            waiting[number] = there - done[number]
        shares = next_shares(
            [replica(number, done[number], round(waiting[number])) for number in (1, 2)], 1.0
        )
        if period == 1:
            assert shares[1] / shares[2] > 2.0
    assert abs(waiting[1] - waiting[2]) < 0.2 * max(waiting.values())


def test_small_changes_are_not_told_and_first_and_last_shares_are() -> None:
    assert not shares_differ({1: 0.50, 2: 0.50}, {1: 0.52, 2: 0.48})
    assert shares_differ({1: 0.50, 2: 0.50}, {1: 0.60, 2: 0.40})
    assert shares_differ({1: 0.99, 2: 0.01}, {1: 1.0, 2: 0.0})
    assert shares_differ({1: 1.0}, {1: 1.0, 2: 0.0})


samples = st.lists(
    st.builds(
        ReplicaSample,
        number=st.integers(1, 50),
        state=st.sampled_from(ReplicaState),
        consumed_per_s=st.floats(0.0, 1e6),
        waiting=st.integers(0, 10**7),
        share=st.floats(0.0, 1.0),
        reachable=st.booleans(),
        age_s=st.floats(0.0, 1e4),
        waiting_consumers=st.integers(0, 3),
    ),
    max_size=20,
    unique_by=lambda one: one.number,
)


@given(
    samples,
    st.floats(0.1, 60.0),
    st.dictionaries(st.integers(1, 50), st.floats(0.0, 1e5)),
    st.booleans(),
)
def test_shares_are_never_negative_and_add_up_to_one_or_all_are_zero(
    replicas: list[ReplicaSample], period_s: float, known: dict[int, float], correct: bool
) -> None:
    # Shares that come in add up to 1 at most.
    total = max(sum(one.share for one in replicas), 1.0)
    replicas = [
        ReplicaSample(
            number=one.number,
            state=one.state,
            consumed_per_s=one.consumed_per_s,
            waiting=one.waiting,
            share=one.share / total,
            reachable=one.reachable,
            age_s=one.age_s,
            waiting_consumers=one.waiting_consumers,
        )
        for one in replicas
    ]
    shares = next_shares(replicas, period_s, known, correct_lengths=correct)
    assert shares.keys() == {one.number for one in replicas}
    assert all(share >= 0.0 for share in shares.values())
    served = any(one.reachable and one.state is SERVING for one in replicas) or (
        any(one.reachable and one.state is DRAINING and one.share > 0.0 for one in replicas)
        and any(one.state is not DRAINING for one in replicas)
    )
    assert sum(shares.values()) == pytest.approx(1.0 if served else 0.0)
    assert all(
        shares[one.number] == 0.0 or (one.reachable and one.state is not ReplicaState.STARTING)
        for one in replicas
    )
