"""What a node can tell of a consumer from its own side: in virtual time, against the truth."""

from __future__ import annotations

import heapq
import random
from statistics import mean

import pytest

from tidegate.broker.dispatch import Consumer
from tidegate.core.errors import TidegateError
from tidegate.core.model import Order
from tidegate.core.prefetch import PrefetchGoal
from tidegate.engines.native.prefetch import ConsumerCredit, SensedConsumer
from tidegate.laws.prefetch.loop import PrefetchRegulator
from tidegate.protocol.packet import Run

DELAY_S = 0.006
TICK_S = 0.05
SAMPLE_S = 0.5


class Line:
    """An outlet to nobody."""

    client_id = 1
    client_name = "far"

    def __init__(self) -> None:
        self.told: list[int] = []

    def can_take(self) -> bool:
        return True

    def deliver(self, consumer: int, runs: list[Run], bodies: list[memoryview | bytes]) -> None: ...

    def consumer_ended(self, consumer: int, error: TidegateError) -> None: ...

    def prefetch_changed(self, consumer: int, prefetch: int, lasting: bool = True) -> None:
        self.told.append(prefetch)


class Handler:
    """A consumer with some slots behind a delay; all that is ready goes out as credit allows."""

    def __init__(self, slots: int, handler_s: float, varies: bool, prefetch: int) -> None:
        self.line = Line()
        self.consumer = Consumer(self.line, 1, prefetch, Order.OLDEST, False, 1 << 30, 60.0)
        self.credit = ConsumerCredit(self.consumer, 0.0, keep_up=True)
        self.level = prefetch
        self.now = 0.0
        self.has_messages = True
        self.works = True
        self._free = [0.0] * slots
        self._handler_s, self._varies = handler_s, varies
        self._random = random.Random(7)
        # When an acknowledgement comes to the node, and when its message had left.
        self._on_its_way: list[tuple[float, float]] = []
        # From when to when a message waited unbegun.
        self._waits: list[tuple[float, float]] = []

    def run(self, samples: int) -> list[SensedConsumer]:
        """So many samples, with a look at every tick."""
        found = []
        for _ in range(samples):
            for _ in range(round(SAMPLE_S / TICK_S)):
                self._until(self.now + TICK_S)
                self.credit.poll(self.now)
                self.consumer.prefetch = self.credit.wanted(self.level, self.now)
                self._deliver(self.now)
            found.append(self.credit.sense(self.now))
        return found

    def held(self, since: float) -> float:
        """The truth: how many waited unbegun, on average."""
        waited_s = sum(max(end - max(begin, since), 0.0) for begin, end in self._waits)
        return waited_s / (self.now - since)

    def _until(self, then: float) -> None:
        book, meters = self.consumer.book, self.consumer.meters
        while self.works and self._on_its_way and self._on_its_way[0][0] <= then:
            at, granted_at = heapq.heappop(self._on_its_way)
            book.outstanding -= 1
            meters.acked.add(1)
            meters.settlements += 1
            meters.settled(granted_at, at, 1)
            self._deliver(at)
        self.now = then

    def _deliver(self, at: float) -> None:
        while self.has_messages and self.consumer.credit() > 0:
            self.consumer.book.outstanding += 1
            self.consumer.meters.delivered.add(1)
            arrives = at + DELAY_S
            begins = max(arrives, heapq.heappop(self._free))
            takes = self._handler_s * (self._random.expovariate(1.0) if self._varies else 1.0)
            heapq.heappush(self._free, begins + takes)
            self._waits.append((arrives, begins))
            heapq.heappush(self._on_its_way, (begins + takes + DELAY_S, at))


@pytest.mark.parametrize("varies", [False, True], ids=["even", "varying"])
@pytest.mark.parametrize(("slots", "handler_s"), [(1, 0.002), (4, 0.02), (16, 0.05)])
@pytest.mark.parametrize("times", [1.0, 1.5, 4.0])
def test_node_estimates_the_messages_that_wait_in_a_consumer(
    slots: int, handler_s: float, varies: bool, times: float
) -> None:
    at_work = slots / handler_s * (2 * DELAY_S + handler_s)
    handler = Handler(slots, handler_s, varies, max(round(times * at_work), 2))
    handler.run(10)
    since = handler.now
    seen = [one.sample.held for one in handler.run(60) if not one.is_probe]

    estimate = mean(held for held in seen if held is not None)
    # A handler that varies is known by the mean of some dozen messages, so well and no better.
    near = 1.0 if not varies else max(2.0, 0.15 * at_work)
    assert estimate == pytest.approx(handler.held(since), rel=0.15, abs=near)


def test_probes_cost_little() -> None:
    handler = Handler(4, 0.02, False, 20)
    handler.run(20)
    before, since = handler.consumer.meters.acked.total, handler.now
    handler.run(200)
    rate_per_s = (handler.consumer.meters.acked.total - before) / (handler.now - since)
    assert rate_per_s > 0.99 * 4 / 0.02


def test_a_longer_way_is_noticed_long_before_the_next_probe_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = Handler(1, 0.002, False, 10)
    handler.run(200)
    monkeypatch.setitem(globals(), "DELAY_S", 4 * DELAY_S)
    handler.run(30)
    assert handler.credit.sojourn is not None
    assert handler.credit.sojourn.base_s == pytest.approx(2 * DELAY_S + 0.002, rel=0.1)


@pytest.mark.parametrize("start", [2, 100])
@pytest.mark.parametrize(("slots", "handler_s"), [(1, 0.001), (4, 0.02), (16, 0.05)])
def test_keeping_up_is_as_fast_as_plenty_and_holds_a_fraction_of_it(
    slots: int, handler_s: float, start: int
) -> None:
    at_work = slots / handler_s * (2 * DELAY_S + handler_s)
    handler = Handler(slots, handler_s, True, start)
    goal = PrefetchGoal(sample_s=SAMPLE_S, settle_s=20 * SAMPLE_S)
    steering = PrefetchRegulator(goal, None, start)

    def steer(samples: int) -> float:
        before, since = handler.consumer.meters.acked.total, handler.now
        for _ in range(samples):
            [sensed] = handler.run(1)
            if not sensed.is_probe:
                steering.step(sensed.sample)
            handler.level = steering.tick()
        return (handler.consumer.meters.acked.total - before) / (handler.now - since)

    steer(120)
    since = handler.now
    assert steer(240) > 0.95 * slots / handler_s
    assert handler.held(since) < at_work


def test_credit_that_is_not_used_says_that_prefetch_does_not_hold_the_rate() -> None:
    handler = Handler(1, 0.01, False, 5)
    assert not any(one.sample.starved for one in handler.run(10)[2:])
    handler.has_messages = False
    assert all(one.sample.starved for one in handler.run(5)[1:])
    handler.has_messages = True
    handler.run(1)
    # It holds all the bytes that it may, and gets no more whatever its prefetch.
    handler.consumer.book.held_bytes = 1 << 31
    assert all(one.sample.starved for one in handler.run(5)[1:])


def test_a_consumer_that_acknowledges_nothing_is_not_steered_by() -> None:
    handler = Handler(1, 0.01, False, 5)
    handler.run(10)
    handler.works = False
    assert all(one.sample.starved for one in handler.run(10)[6:])


def test_the_mean_of_what_was_set_counts_as_prefetch() -> None:
    handler = Handler(1, 0.01, False, 4)
    handler.run(10)
    for handler.level in (4, 5):
        sensed = handler.run(4)
    assert sensed[-1].sample.prefetch == pytest.approx(5.0)


def test_a_consumer_is_told_of_real_changes_only() -> None:
    handler = Handler(1, 0.01, False, 20)
    for level in (20.4, 19.2, 21.0, 21.9, 22.8, 22.1, 1.0, 1.4):
        handler.credit.notify_consumer(level)
    assert handler.line.told == [23, 1, 2]


@pytest.mark.parametrize("handler_s", [1.0, 5.0])
def test_slow_handlers_of_which_nothing_is_known_are_left_at_work(handler_s: float) -> None:
    handler = Handler(4, handler_s, False, 8)
    samples = round(12 * handler_s / SAMPLE_S)
    assert not any(one.is_probe for one in handler.run(samples))
    rate_per_s = handler.consumer.meters.acked.total / handler.now
    assert rate_per_s > 0.85 * 4 / handler_s


def test_slow_handlers_that_have_plenty_are_probed() -> None:
    handler = Handler(4, 1.0, False, 40)
    assert any(one.is_probe for one in handler.run(40))


def test_a_slow_handler_that_begins_with_one_message_at_a_time_is_known_for_nothing() -> None:
    handler = Handler(4, 1.0, False, 1)
    handler.run(20)
    assert handler.credit.sojourn is not None
    assert handler.credit.sojourn.base_s == pytest.approx(1.0 + 2 * DELAY_S, rel=0.05)
