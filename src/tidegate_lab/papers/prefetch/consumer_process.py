"""The consumer under test in a child process, with a handler of a given duration and a meter.

It is an ordinary consumer of Tidegate's client, on the broker of the URL. Ten times a second a
meter notes the numbers of received and handled messages. The experiments use these notes, and not
the measurements of a control loop. The consumer can run the product's prefetch control loop, with
measurements that are lost, noisy or late. The parent writes one command per line and reads one
answer for each.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque

import msgspec
import uvloop

import tidegate
from tidegate.client.engine import EngineSubscription
from tidegate.client.handler import HandlerMeter
from tidegate.client.prefetch import AutomaticPrefetch, PrefetchStep
from tidegate.core.prefetch import ConsumerSample, PrefetchGoal
from tidegate.engines.probe import PacedHandler
from tidegate_lab.loadgen.processes import answer

NOTE_S = 0.1


class ConsumerSetup(msgspec.Struct, frozen=True):
    """The queue of a consumer, its first prefetch, and its handler's duration."""

    url: str
    queue: str
    prefetch: int
    handler_s: float


class FixPrefetch(msgspec.Struct, frozen=True, tag=True):
    """Set a fixed prefetch and end the control loop."""

    prefetch: int


class SetHandler(msgspec.Struct, frozen=True, tag=True):
    """Set the handler's duration per message."""

    handler_s: float


class ControlPrefetch(msgspec.Struct, frozen=True, tag=True):
    """Start the control loop with a goal from the current prefetch, or change its goal."""

    goal: PrefetchGoal


class SetNoise(msgspec.Struct, frozen=True, tag=True):
    """Set the faults of measurements."""

    blur: MeasurementNoise


class ReadNotes(msgspec.Struct, frozen=True, tag=True):
    """Return the notes since the last `ReadNotes`."""


Order = FixPrefetch | SetHandler | ControlPrefetch | SetNoise | ReadNotes


class MeterNote(msgspec.Struct, frozen=True, array_like=True):
    """The values of the meter at one time; counts are since the start of the consumer."""

    # The time on the monotonic clock, which all processes of a machine share.
    at: float
    delivered: int
    handled: int
    held: int
    prefetch: int
    # Seconds in which the handler was busy.
    busy_s: float = 0.0


class MeterNotes(msgspec.Struct, frozen=True):
    """The answer to `ReadNotes`."""

    notes: list[MeterNote]
    steps: list[LoopStep]


class MeasuredConsumer:
    """A subscription whose messages are handled one at a time."""

    def __init__(self, subscription: EngineSubscription, place: ConsumerSetup) -> None:
        self._subscription = subscription
        self._queue = place.queue
        self._handler = PacedHandler(place.handler_s)
        self._handling = HandlerMeter(1, time.monotonic)
        self._notes: list[MeterNote] = []
        self._loop: NoisyLoop | None = None
        self._looping: asyncio.Task[None] | None = None
        self._blur = MeasurementNoise()

    async def work(self) -> None:
        async for message in self._subscription:
            self._handling.on_started()
            await self._handler.turn()
            message.ack()
            self._handling.on_finished()

    async def note(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._note()
            due += NOTE_S
            await asyncio.sleep(due - loop.time())

    def _note(self) -> None:
        one = self._subscription
        handled, busy_s = self._handling.read()
        at = time.monotonic()
        self._notes.append(MeterNote(at, one.delivered, handled, one.held, one.prefetch, busy_s))

    async def obey(self, order: Order) -> object:
        match order:
            case FixPrefetch(prefetch):
                await self._stop_steering()
                await self._subscription.set_prefetch(prefetch)
            case SetHandler(handler_s):
                self._handler = PacedHandler(handler_s)
            case ControlPrefetch(goal):
                self._steer(goal)
            case SetNoise(blur):
                self._blur = blur
                if self._loop is not None:
                    self._loop.blur(blur)
            case ReadNotes():
                if self._looping is not None and self._looping.done():
                    self._looping.result()
                # A note at this moment ends the returned period and begins the next one.
                self._note()
                notes, self._notes = self._notes, []
                return MeterNotes(notes, [] if self._loop is None else self._loop.taken())
        return True

    def _steer(self, goal: PrefetchGoal) -> None:
        if self._loop is not None:
            self._loop.steering.change(goal)
            return
        self._loop = NoisyLoop(
            self._queue,
            goal,
            self._subscription.prefetch,
            self._handling,
            self._blur,
        )
        self._looping = asyncio.create_task(self._loop.run(self._subscription))

    async def _stop_steering(self) -> None:
        if self._looping is not None:
            self._looping.cancel()
            await asyncio.wait({self._looping})
        self._loop = self._looping = None


async def _serve(place: ConsumerSetup) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with (
        tidegate.connect(place.url) as client,
        client.subscribe(place.queue, prefetch=place.prefetch) as subscription,
    ):
        consumer = MeasuredConsumer(subscription, place)
        tasks = [asyncio.create_task(consumer.work()), asyncio.create_task(consumer.note())]
        answer(True)
        while line := await orders.readline():
            answer(await consumer.obey(msgspec.json.decode(line, type=Order)))
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# Measurement faults for control loops: lost, noisy and late measurements.
#
# The paper names them as future work.


class MeasurementNoise(msgspec.Struct, frozen=True):
    """The faults of measurements."""

    # The fraction of the measurements that is lost.
    lost: float = 0.0
    # The standard deviation of the noise, as a fraction of the rate.
    noise: float = 0.0
    # The delay of a measurement in samples.
    late_samples: int = 0


class NoisySensor:
    """A filter between a sensor and a control loop that applies measurement faults."""

    def __init__(self, blur: MeasurementNoise, seed: int = 6) -> None:
        self.blur = blur
        self._random = random.Random(seed)
        self._on_the_way: deque[ConsumerSample] = deque()

    def seen(self, sample: ConsumerSample) -> ConsumerSample | None:
        """Return the sample as the loop receives it, or None if it is lost."""
        if self._random.random() < self.blur.lost:
            return None
        self._on_the_way.append(sample)
        while len(self._on_the_way) > self.blur.late_samples + 1:
            self._on_the_way.popleft()
        seen = self._on_the_way[0]
        factor = max(1.0 + self._random.gauss(0.0, self.blur.noise), 0.0)
        return msgspec.structs.replace(
            seen,
            at=sample.at,
            arrived_per_s=seen.arrived_per_s * factor,
            prefetch=sample.prefetch,
        )


# The prefetch control loop of a worker, with measurements that can be lost, noisy or late.


class LoopStep(msgspec.Struct, frozen=True):
    """The measurement and the action of a control loop at one sample."""

    at: float
    # The measured rate; None if the measurement was lost.
    rate_per_s: float | None
    level: float
    mode: str
    saturated: str
    notes: list[str]


class NoisyLoop(AutomaticPrefetch):
    """The product's control loop of one subscription, with disturbed measurements."""

    def __init__(
        self,
        queue: str,
        goal: PrefetchGoal,
        start: int,
        handling: HandlerMeter,
        blur: MeasurementNoise,
    ) -> None:
        super().__init__(queue, goal, start=start, handling=handling, on_step=self._note)
        self._sensor = NoisySensor(blur)
        self._steps: list[LoopStep] = []

    def blur(self, blur: MeasurementNoise) -> None:
        self._sensor.blur = blur

    def taken(self) -> list[LoopStep]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    async def sense(self, subscription: EngineSubscription) -> ConsumerSample | None:
        sample = await super().sense(subscription)
        return None if sample is None else self._sensor.seen(sample)

    def _note(self, told: PrefetchStep) -> None:
        step = told.step
        self._steps.append(
            LoopStep(
                at=self._clock(),
                rate_per_s=None if told.sample is None else told.sample.arrived_per_s,
                level=step.level,
                mode=step.mode.value,
                saturated=step.saturated.value,
                notes=list(step.notes),
            )
        )


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=ConsumerSetup)))
