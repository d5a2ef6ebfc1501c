"""Exchange: who gives how much to whom, and when it is left to flow control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.decisions import Exchange, ReplicaSample
from tidegate.core.topology import ReplicaState
from tidegate.laws.routing import exchanges

DRAINING = ReplicaState.DRAINING


def replica(number: int, waiting: int, **rest: object) -> ReplicaSample:
    usual = {"consumed_per_s": 100.0, "share": 0.5}
    return ReplicaSample(number=number, waiting=waiting, **{**usual, **rest})  # type: ignore[arg-type]


def test_a_lazy_replica_gets_half_of_what_a_flooded_one_has() -> None:
    moved = exchanges(
        [replica(1, 600), replica(2, 0, waiting_consumers=1, consumed_per_s=0.0)], 0, {}, 1.0
    )
    assert moved == [Exchange(source=1, target=2, count=300)]


def test_the_lazy_one_comes_before_the_merely_short_one() -> None:
    moved = exchanges(
        [replica(1, 890), replica(2, 100), replica(3, 0, waiting_consumers=2)], 0, {}, 1.0
    )
    # 990 / 3 = 330: 560 to give, 330 to the lazy one first.
    assert [(move.target, move.count) for move in moved] == [(3, 330), (2, 230)]


def test_exchange_leaves_messages_that_a_period_consumes() -> None:
    assert exchanges([replica(1, 90), replica(2, 0, waiting_consumers=1)], 0, {}, 1.0) == []


def test_differences_that_flow_control_evens_out_are_left_to_it() -> None:
    assert exchanges([replica(1, 400), replica(2, 200)], 0, {}, 1.0) == []
    # 3 100 above a mean of 3 100 would take it more than five periods of 100.
    assert exchanges([replica(1, 6200), replica(2, 10)], 0, {}, 1.0) == [
        Exchange(source=1, target=2, count=3095)
    ]


def test_a_draining_replica_gives_only_when_it_gets_nothing_any_more() -> None:
    going = replica(2, 50, state=DRAINING, share=0.1)
    assert exchanges([replica(1, 10), going], 0, {}, 1.0) == []
    gone = replica(2, 50, state=DRAINING, share=0.0)
    assert exchanges([replica(1, 10), gone], 0, {}, 1.0) == [Exchange(source=2, target=1, count=50)]


def test_a_longer_replica_gets_nothing_of_what_the_going_one_gives() -> None:
    gone = replica(3, 60, state=DRAINING, share=0.0)
    moved = exchanges([replica(1, 500), replica(2, 10), gone], 0, {}, 1.0)
    assert moved == [Exchange(source=3, target=2, count=60)]


def test_the_aliass_backlog_goes_by_share_to_those_that_can_be_reached() -> None:
    replicas = [replica(1, 0), replica(2, 0), replica(3, 0, reachable=False)]
    moved = exchanges(replicas, 90, {1: 0.6, 2: 0.3, 3: 0.1}, 1.0)
    assert moved == [Exchange(source=0, target=1, count=60), Exchange(source=0, target=2, count=30)]
    assert exchanges([replicas[2]], 90, {3: 1.0}, 1.0) == []


samples = st.lists(
    st.builds(
        ReplicaSample,
        number=st.integers(1, 30),
        state=st.sampled_from(ReplicaState),
        waiting=st.integers(0, 20_000),
        consumed_per_s=st.floats(0.0, 500.0),
        share=st.sampled_from([0.0, 0.2]),
        reachable=st.booleans(),
        waiting_consumers=st.integers(0, 1),
    ),
    max_size=12,
    unique_by=lambda one: one.number,
)


@given(samples, st.integers(0, 500))
def test_exchange_moves_existing_messages_and_evens_out_lengths(
    replicas: list[ReplicaSample], alias_waiting: int
) -> None:
    moved = exchanges(replicas, alias_waiting, {one.number: one.share for one in replicas}, 1.0)
    length = {one.number: one.waiting for one in replicas} | {0: alias_waiting}
    after = dict(length)
    for move in moved:
        after[move.source] -= move.count
        after[move.target] += move.count
    assert all(count >= 0 for count in after.values())
    serving = [one for one in replicas if one.reachable and one.state is ReplicaState.SERVING]
    attended = [one for one in serving if one.is_attended] or serving
    open_ = [one.number for one in attended]
    assert {move.target for move in moved} <= set(open_)
    if open_ and not any(move.source == 0 for move in moved):
        # Whoever was longest does not get longer, unless all come to the same length.
        given = sum(move.count for move in moved if move.source not in open_)
        even = (sum(length[number] for number in open_) + given) / len(open_)
        top = max(length[number] for number in open_)
        assert max(after[number] for number in open_) <= max(top, even + 1)


def test_where_nobody_consumes_the_last_message_is_given_away() -> None:
    lonely = replica(3, 1, consumed_per_s=0.0)
    assert exchanges([replica(1, 5), replica(2, 9), lonely], 0, {}, 1.0) == [
        Exchange(source=3, target=1, count=1)
    ]
    # Nobody consumes anywhere: nothing is better elsewhere.
    assert exchanges([replica(1, 0, consumed_per_s=0.0), lonely], 0, {}, 1.0) == []
