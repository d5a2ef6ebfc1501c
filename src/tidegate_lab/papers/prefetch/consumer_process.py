"""The consumer under test in a child process, with a handler of a given duration and a meter.

It is an ordinary consumer of Tidegate's client, on the broker of the URL. Ten times a second a
meter notes the numbers of received and handled messages. The experiments use these notes, and not
the measurements of a control loop. The consumer can run the product's prefetch control loop, with
measurements that are lost, noisy or late. The parent writes one command per line and reads one
answer for each.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop

import tidegate
from tidegate.adapters.probe import PacedHandler
from tidegate.client.engine import EngineSubscription
from tidegate.client.handling import Handling
from tidegate.core.prefetch import PrefetchGoal
from tidegate.lab.bench.child import answer
from tidegate.lab.prefetch.blurred import Blur
from tidegate.lab.prefetch.steered import BlurredLoop, Step

NOTE_S = 0.1


class Place(msgspec.Struct, frozen=True):
    """The queue of a consumer, its first prefetch, and its handler's duration."""

    url: str
    queue: str
    prefetch: int
    handler_s: float


class SetPrefetch(msgspec.Struct, frozen=True, tag=True):
    """Set a fixed prefetch and end the control loop."""

    prefetch: int


class SetHandler(msgspec.Struct, frozen=True, tag=True):
    """Set the handler's duration per message."""

    handler_s: float


class Steer(msgspec.Struct, frozen=True, tag=True):
    """Start the control loop with a goal from the current prefetch, or change its goal."""

    goal: PrefetchGoal


class Disturb(msgspec.Struct, frozen=True, tag=True):
    """Set the faults of measurements."""

    blur: Blur


class Read(msgspec.Struct, frozen=True, tag=True):
    """Return the notes since the last `ReadNotes`."""


Order = SetPrefetch | SetHandler | Steer | Disturb | Read


class Note(msgspec.Struct, frozen=True, array_like=True):
    """The values of the meter at one time; counts are since the start of the consumer."""

    # The time on the monotonic clock, which all processes of a machine share.
    at: float
    delivered: int
    handled: int
    held: int
    prefetch: int
    # Seconds in which the handler was busy.
    busy_s: float = 0.0


class Notes(msgspec.Struct, frozen=True):
    """The answer to `ReadNotes`."""

    notes: list[Note]
    steps: list[Step]


class MeasuredConsumer:
    """A subscription whose messages are handled one at a time."""

    def __init__(self, subscription: EngineSubscription, place: Place) -> None:
        self._subscription = subscription
        self._queue = place.queue
        self._handler = PacedHandler(place.handler_s)
        self._handling = Handling(1, time.monotonic)
        self._notes: list[Note] = []
        self._loop: BlurredLoop | None = None
        self._looping: asyncio.Task[None] | None = None
        self._blur = Blur()

    async def work(self) -> None:
        async for message in self._subscription:
            self._handling.began()
            await self._handler.turn()
            message.ack()
            self._handling.ended()

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
        self._notes.append(Note(at, one.delivered, handled, one.held, one.prefetch, busy_s))

    async def obey(self, order: Order) -> object:
        match order:
            case SetPrefetch(prefetch):
                await self._stop_steering()
                await self._subscription.set_prefetch(prefetch)
            case SetHandler(handler_s):
                self._handler = PacedHandler(handler_s)
            case Steer(goal):
                self._steer(goal)
            case Disturb(blur):
                self._blur = blur
                if self._loop is not None:
                    self._loop.blur(blur)
            case Read():
                if self._looping is not None and self._looping.done():
                    self._looping.result()
                # A note at this moment ends the returned period and begins the next one.
                self._note()
                notes, self._notes = self._notes, []
                return Notes(notes, [] if self._loop is None else self._loop.taken())
        return True

    def _steer(self, goal: PrefetchGoal) -> None:
        if self._loop is not None:
            self._loop.steering.change(goal)
            return
        self._loop = BlurredLoop(
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


async def _serve(place: Place) -> None:
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


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=Place)))
