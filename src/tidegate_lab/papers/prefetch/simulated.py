"""A simulation of the testbed in virtual time, message by message, without processes.

Events are on a heap. The broker delivers in turn to the consumers that have fewer unacknowledged
messages than their prefetch. A message arrives after the network delay and waits for the handler;
its acknowledgement takes the delay back. Delay and handler times have a little jitter from a fixed
seed, so that runs are repeatable.

The controller is the product's own. Only the code around it, which measures and ticks, is a second
implementation for virtual time.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from tidegate.core.prefetch import ConsumerSample, PrefetchGoal
from tidegate.laws.prefetch.controller import WorkloadSchedule
from tidegate.laws.prefetch.loop import PrefetchRegulator
from tidegate_lab.papers.prefetch.consumer_process import (
    NOTE_S,
    LoopStep,
    MeasurementNoise,
    MeterNote,
    NoisySensor,
)
from tidegate_lab.papers.prefetch.plan import (
    LENGTH_MAX,
    WAITING_FIRST,
    BrokerKind,
    MeterTrack,
    Setting,
    TestbedConsumer,
)

# The mean time that broker and client need for a message, in addition to the network delay.
OVERHEAD_S = 0.0003
HANDLER_DEVIATION = 0.05
TICKS = 20

Event = Callable[[], None]


class SimulatedTestbed:
    """A simulated testbed.

    Its clock advances only in `run`, which `watch`, `pause` and `wait_for_messages` call.
    """

    def __init__(self, engine: BrokerKind, setting: Setting, seed: int = 6) -> None:
        self.engine = engine
        self.setting = setting
        self.random = random.Random(seed)
        self.delay_s = setting.delay_s
        self._now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._consumers: list[SimulatedConsumer] = []
        self._turn = 0
        self._times = 1.0
        self._waiting = float(WAITING_FIRST)
        self._published = 0.0
        self._counted_at = 0.0
        self._will_retry = False

    @property
    def network(self) -> SimulatedTestbed:
        """The testbed itself, which also simulates the network."""
        return self

    def now(self) -> float:
        return self._now

    def set_delay(self, delay_s: float) -> None:
        self.delay_s = delay_s

    @contextlib.contextmanager
    def consumer(self, prefetch: int) -> Iterator[SimulatedConsumer]:
        consumer = SimulatedConsumer(self, prefetch, self.setting.handler_s)
        self._consumers.append(consumer)
        self.deliver()
        try:
            yield consumer
        finally:
            self._consumers.remove(consumer)
            consumer.end()

    def steer(self, consumer: TestbedConsumer, goal: PrefetchGoal) -> None:
        consumer.steer(goal)

    def steer_no_more(self) -> None:
        """Do nothing, because a control loop ends with its consumer."""

    def publish(self, times: float) -> int:
        self._count()
        self._times = times
        self.deliver()
        return int(self._published)

    def waiting(self) -> int:
        self._count()
        return int(self._waiting)

    def purge(self) -> None:
        self._count()
        self._waiting = 0.0

    def wait_for_messages(self, at_least: int = WAITING_FIRST) -> None:
        while self.waiting() < at_least:
            self.run(0.05)

    def pause(self, seconds: float) -> None:
        self.run(seconds)

    # Time

    def after(self, seconds: float, event: Event) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), event))

    def run(self, seconds: float) -> None:
        """Advance the clock by `seconds` and run all events that are due."""
        end = self._now + seconds
        while self._events and self._events[0][0] <= end:
            self._now, _, event = heapq.heappop(self._events)
            event()
        self._now = end

    # The broker

    def deliver(self) -> None:
        """Deliver waiting messages to the consumers in turn, as their prefetches allow."""
        self._count()
        refused = 0
        while refused < len(self._consumers):
            consumer = self._consumers[self._turn % len(self._consumers)]
            self._turn += 1
            if not consumer.may_have_more:
                refused += 1
                continue
            if self._waiting < 1.0:
                self._retry()
                return
            refused = 0
            self._waiting -= 1.0
            consumer.send()

    def _retry(self) -> None:
        """Schedule the next delivery for the time at which the next message is published."""
        # While the publishers pause, a retry would be useless.
        if self._will_retry or self._times <= 0.0:
            return
        self._will_retry = True

        def again() -> None:
            self._will_retry = False
            self.deliver()

        missing = 1.0 - self._waiting
        rate_per_s = self.setting.offered_per_s * self._times
        # A nanosecond later, so that rounding leaves no fraction below one message.
        self.after(missing / rate_per_s + 1e-9, again)

    def _count(self) -> None:
        new = (self._now - self._counted_at) * self.setting.offered_per_s * self._times
        self._counted_at = self._now
        self._published += new
        self._waiting = min(self._waiting + new, float(LENGTH_MAX))


class SimulatedConsumer:
    """A simulated consumer with a handler, a meter, and optionally a control loop."""

    def __init__(self, scene: SimulatedTestbed, prefetch: int, handler_s: float) -> None:
        self._scene = scene
        self.track = MeterTrack()
        # The prefetch that is set here, and the prefetch that the broker uses already.
        self._prefetch = self._allowed = prefetch
        self._handler_s = handler_s
        self._unacknowledged = 0
        self._held: deque[None] = deque()
        self._delivered = self._handled = 0
        self._busy_s = 0.0
        self._is_busy = self._has_ended = False
        self._arrives_at = 0.0
        self._sensor = NoisySensor(MeasurementNoise())
        self._steering: PrefetchRegulator | None = None
        self._steered_since = 0
        self._sample = (0.0, 0, 0, 0.0)
        self._prefetch_ticks = self._held_ticks = self._ticks = 0
        self._note_again()

    # Commands

    def set_prefetch(self, prefetch: int) -> None:
        self._steering = None
        self._set(prefetch)

    def set_handler(self, handler_s: float) -> None:
        self._handler_s = handler_s

    def blur(self, blur: MeasurementNoise) -> None:
        self._sensor.blur = blur

    def watch(self, seconds: float) -> MeterTrack:
        self._note()
        began_at = self._scene.now()
        self._scene.run(seconds)
        self._note()
        return self.track.since(began_at)

    def end(self) -> None:
        self._has_ended = True

    # Messages

    @property
    def may_have_more(self) -> bool:
        return self._unacknowledged < self._allowed

    def send(self) -> None:
        self._unacknowledged += 1
        scene = self._scene
        way_s = scene.delay_s + scene.random.expovariate(1.0 / OVERHEAD_S)
        # One connection keeps the order of its messages.
        self._arrives_at = max(self._arrives_at, scene.now() + way_s)
        scene.after(self._arrives_at - scene.now(), self._arrive)

    def _arrive(self) -> None:
        self._delivered += 1
        self._held.append(None)
        self._begin()

    def _begin(self) -> None:
        if self._is_busy or not self._held:
            return
        self._held.popleft()
        self._is_busy = True
        lasts_s = self._handler_s * max(self._scene.random.gauss(1.0, HANDLER_DEVIATION), 0.1)
        self._busy_s += lasts_s
        self._scene.after(lasts_s, self._done)

    def _done(self) -> None:
        self._handled += 1
        self._is_busy = False
        self._scene.after(self._scene.delay_s, self._acknowledged)
        self._begin()

    def _acknowledged(self) -> None:
        self._unacknowledged -= 1
        if not self._has_ended:
            self._scene.deliver()

    def _set(self, prefetch: int) -> None:
        self._prefetch = prefetch

        def come_through() -> None:
            self._allowed = prefetch
            self._scene.deliver()

        self._scene.after(self._scene.delay_s, come_through)

    # The meter

    def _note_again(self) -> None:
        if not self._has_ended:
            self._note()
            self._scene.after(NOTE_S, self._note_again)

    def _note(self) -> None:
        note = MeterNote(
            self._scene.now(),
            self._delivered,
            self._handled,
            len(self._held),
            self._prefetch,
            self._busy_s,
        )
        self.track.add([note], [])

    # The loop

    def steer(self, goal: PrefetchGoal, schedule: WorkloadSchedule | None = None) -> None:
        """Start the control loop, or change its goal if it runs.

        `schedule` has models of several workloads; it counts only when the loop starts.
        """
        if self._steering is not None:
            self._steering.change(goal)
            return
        self._steering = PrefetchRegulator(goal, None, self._prefetch, schedule=schedule)
        self._begin_sample()
        self._tick(self._steering)

    def _begin_sample(self) -> None:
        self._sample = (self._scene.now(), self._delivered, self._handled, self._busy_s)
        self._prefetch_ticks = self._held_ticks = self._ticks = 0

    def _tick(self, steering: PrefetchRegulator) -> None:
        if steering is not self._steering or self._has_ended:
            return
        if self._ticks == TICKS:
            self._step(steering)
        wanted = steering.tick()
        if wanted != self._prefetch:
            self._set(wanted)
        self._ticks += 1
        self._prefetch_ticks += wanted
        self._held_ticks += len(self._held)
        self._scene.after(steering.goal.sample_s / TICKS, lambda: self._tick(steering))

    def _step(self, steering: PrefetchRegulator) -> None:
        began_at, delivered, handled, busy_s = self._sample
        lasted_s = self._scene.now() - began_at
        # A node's loop knows deliveries and acknowledgements, but not what a consumer holds.
        is_inside = self._scene.engine is not BrokerKind.TIDEGATE
        sample = ConsumerSample(
            at=self._scene.now(),
            interval_s=lasted_s,
            arrived_per_s=(self._delivered - delivered) / lasted_s,
            processed_per_s=(self._handled - handled) / lasted_s if is_inside else None,
            busy=min((self._busy_s - busy_s) / lasted_s, 1.0) if is_inside else None,
            held=self._held_ticks / TICKS if is_inside else None,
            prefetch=self._prefetch_ticks / TICKS,
            starved=not self._held and self._scene.waiting() == 0,
        )
        seen = self._sensor.seen(sample)
        step = steering.step(seen)
        self.track.add(
            [],
            [
                LoopStep(
                    at=self._scene.now(),
                    rate_per_s=math.nan if seen is None else seen.arrived_per_s,
                    level=step.level,
                    mode=step.mode.value,
                    saturated=step.saturated.value,
                    notes=list(map(str, step.notes)),
                )
            ],
        )
        self._begin_sample()
