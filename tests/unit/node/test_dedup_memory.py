"""How long a dedup id is remembered: from when its message was put, wherever it went since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.context import ReplicaContext
from tidegate.broker.deduplication import Deduplication, DedupWindow
from tidegate.broker.intake import IncomingTransfers, MessageIds
from tidegate.core.errors import TidegateError
from tidegate.core.model import Attributes, DeathReason, QueueInfo, QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.core.segment import Budget, Segment
from tidegate.core.store import Clock
from tidegate.queueing.spans import Span
from tidegate.storage.memory import MemoryStore

WINDOW_S = 300.0


class Taker:
    """A replica as far as messages come over to it, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        # What a wall clock shows has nothing to do with the monotonic one.
        self.clock = Clock(lambda: 1_700_000_000.0 + self.now_s, lambda: 5000.0 + self.now_s)
        holding = ReplicaContext(
            QueueInfo(2, "orders#2", True, QueuePolicy(dedup_window_s=WINDOW_S), alias_id=1),
            1,
            store=MemoryStore(self.clock),
            budget=Budget(1 << 20),
            limits=NodeLimits(),
            clock=self.clock,
            may_deliver=lambda: True,
            listener=self,
        )
        self.dedup = Deduplication(holding, lambda: None)
        ids = MessageIds(holding, lambda: None)
        ids.next_id, ids.end = 1, 1 << 40
        self.arrivals = IncomingTransfers(holding, ids, self.dedup)

    def admit(self, segment: Segment) -> None:
        """Take the segment; these tests look at its dedup ids only."""

    def dead_letter(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        raise AssertionError("nothing is given up here")

    def fence(self, error: TidegateError) -> None:
        raise AssertionError("nothing is fenced here")

    def take(self, *dedup_ids: str, put_at_s: float) -> None:
        segment = Segment(
            queue_id=2,
            first_id=1,
            priority=5,
            arrived_at=1_700_000_000.0 + put_at_s,
            lengths=[1] * len(dedup_ids),
            payload=b"x" * len(dedup_ids),
            senders=[1],
            attributes=[Attributes(dedup_id=each) for each in dedup_ids],
        )
        self.arrivals.came_over(self.arrivals.expect(segment.count), [segment])

    def is_new(self, dedup_id: str) -> bool:
        return not self.dedup.duplicates([Attributes(dedup_id=dedup_id)], set())


def test_a_message_that_comes_over_takes_the_age_of_its_id_along() -> None:
    taker = Taker()
    taker.now_s = 90.0
    taker.take("x", put_at_s=0.0)
    taker.now_s = 100.0
    assert not taker.is_new("x")
    taker.now_s = 301.0
    assert taker.is_new("x")


def test_an_id_whose_window_is_over_does_not_begin_another_when_its_message_comes_over() -> None:
    taker = Taker()
    taker.now_s = 3600.0
    taker.take("x", put_at_s=0.0)
    taker.now_s = 3660.0
    assert taker.is_new("x")


def test_an_older_message_of_the_same_id_does_not_shorten_the_window() -> None:
    taker = Taker()
    taker.now_s = 400.0
    taker.dedup.stored.add(["x"], taker.clock.monotonic())
    taker.take("x", "y", put_at_s=150.0)
    taker.now_s = 500.0
    assert not taker.is_new("x")
    assert taker.is_new("y")


def test_a_clock_that_is_behind_that_of_the_giver_prolongs_nothing() -> None:
    taker = Taker()
    taker.take("x", put_at_s=60.0)
    taker.now_s = 301.0
    assert taker.is_new("x")


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), min_size=1),
        ),
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_the_latest_time_of_each_id_counts_and_the_oldest_are_forgotten_first(
    steps: list[tuple[bool, dict[str, int]]], window_s: int
) -> None:
    window = DedupWindow()
    expected: dict[str, float] = {}
    now = 100.0
    for is_load, ages_s in steps:
        now += 3.0
        if is_load:
            window.load({each: float(age_s) for each, age_s in ages_s.items()}, now)
            for each, age_s in ages_s.items():
                expected[each] = max(now - age_s, expected.get(each, 0.0))
        else:
            window.add(list(ages_s), now)
            expected |= dict.fromkeys(ages_s, now)
        assert [expected[each] for each in window] == sorted(expected.values())
    window.expire(now, window_s)
    assert set(window) == {each for each, at in expected.items() if now - at < window_s}
