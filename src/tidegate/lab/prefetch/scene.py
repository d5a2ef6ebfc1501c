"""The paper's set-up on one machine: a broker, 25 publishers, a network, a consumer.

    publishers ──▶ broker ◀── proxy (6 ms each way) ◀── consumer (1 ms for each message)

Strategy: everything is a process of its own; only the consumer is behind the network, as in the
paper only its round trips matter. The queue always has some and never grows without bound: at
its length the oldest are dropped, since publishers offer three times what the consumer can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar

import aio_pika
import msgspec

import tidegate
from tidegate.core.model import Overflow, QueuePolicy
from tidegate.core.prefetch import PrefetchGoal
from tidegate.lab.bench.child import Child
from tidegate.lab.faults.proxy_process import ProxyProcess, proxy_at
from tidegate.lab.peers.rabbitmq_server import rabbitmq_server
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.prefetch.blurred import Blur
from tidegate.lab.prefetch.consumer_process import (
    Disturb,
    Notes,
    Order,
    Place,
    Read,
    SetHandler,
    SetPrefetch,
    Steer,
)
from tidegate.lab.prefetch.publishers_process import PAYLOAD_BYTES, Pace, Press
from tidegate.lab.prefetch.stage import (
    LENGTH_MAX,
    QUEUE,
    WAITING_FIRST,
    Engine,
    Setting,
    StagedConsumer,
)
from tidegate.lab.prefetch.track import Track
from tidegate.lab.report.experiments import ExperimentFailed

__all__ = ["PAYLOAD_BYTES", "Consumer", "Scene", "scene_on"]

ANSWER_TIMEOUT_S = 60.0

Answer = TypeVar("Answer")


class Consumer:
    """A consumer under test, as its parent sees it."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.track = Track()

    def set_prefetch(self, prefetch: int) -> None:
        self._ask(SetPrefetch(prefetch), bool)

    def set_handler(self, handler_s: float) -> None:
        self._ask(SetHandler(handler_s), bool)

    def steer(self, goal: PrefetchGoal) -> None:
        self._ask(Steer(goal), bool)

    def blur(self, blur: Blur) -> None:
        self._ask(Disturb(blur), bool)

    def watch(self, seconds: float) -> Track:
        """What it does from now on for so long; all of it stays in `track`, too."""
        began_at = self._read()
        time.sleep(seconds)
        self._read()
        return self.track.since(began_at)

    def _read(self) -> float:
        """The moment of the last note."""
        read = self._ask(Read(), Notes)
        self.track.add(read.notes, read.steps)
        return self.track.notes[-1].at

    def _ask(self, order: Order, kind: type[Answer]) -> Answer:
        self._child.say(order)
        return self._child.hear(kind, ANSWER_TIMEOUT_S)


class Scene:
    """A broker with publishers at work and a network in front of it."""

    def __init__(
        self, engine: Engine, setting: Setting, url: str, proxy: ProxyProcess, publishers: Child
    ) -> None:
        self.engine = engine
        self.setting = setting
        self.url = url
        self.network = proxy
        self._publishers = publishers

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextlib.contextmanager
    def consumer(self, prefetch: int) -> Iterator[Consumer]:
        """One more, behind the network."""
        place = Place(self.network.url, QUEUE, prefetch, self.setting.handler_s)
        arguments = [msgspec.json.encode(place).decode()]
        with Child("tidegate.lab.prefetch.consumer_process", arguments) as child:
            child.hear(bool, ANSWER_TIMEOUT_S)
            yield Consumer(child)

    def publish(self, times: float) -> int:
        """So many times as fast from now on; how many were published so far."""
        self._publishers.say(Pace(times))
        return self._publishers.hear(int, ANSWER_TIMEOUT_S)

    def steer(self, consumer: StagedConsumer, goal: PrefetchGoal) -> None:
        """By the loop in the worker on RabbitMQ, and by the node's own on Tidegate."""
        if self.engine is Engine.RABBITMQ:
            consumer.steer(goal)
        else:
            asyncio.run(_set_goal(self.url, goal))

    def steer_no_more(self) -> None:
        """A goal of the queue is gone; one in a worker ends with it."""
        if self.engine is Engine.TIDEGATE:
            asyncio.run(_set_goal(self.url, None))

    def waiting(self) -> int:
        """Messages in the queue that nobody has."""
        return asyncio.run(_waiting(self.engine, self.url))

    def purge(self) -> None:
        """Drop what waits."""
        asyncio.run(_purge(self.url))

    def wait_for_messages(self, at_least: int = WAITING_FIRST) -> None:
        end_s = time.monotonic() + ANSWER_TIMEOUT_S
        while (waiting := self.waiting()) < at_least:
            if time.monotonic() > end_s:
                raise ExperimentFailed(
                    f"{waiting} messages wait after {ANSWER_TIMEOUT_S:.0f} s, and {at_least} are "
                    "needed: publishers do not get through"
                )
            time.sleep(0.05)


@contextlib.contextmanager
def scene_on(engine: Engine, setting: Setting, *, frugal: bool = False) -> Iterator[Scene]:
    """A fresh broker with a queue that has messages; frugal for tests, not for figures."""
    with contextlib.ExitStack() as stack:
        if engine is Engine.RABBITMQ:
            url = stack.enter_context(rabbitmq_server(frugal=frugal)).url
        else:
            server = stack.enter_context(tidegate_server())
            url = f"tidegate://127.0.0.1:{server.port}"
        asyncio.run(_make_queue(engine, url))
        proxy = stack.enter_context(proxy_at(url, setting.delay_s))
        press = Press(url, QUEUE, setting.publishers, setting.pause_s, setting.pause_deviation_s)
        arguments = [msgspec.json.encode(press).decode()]
        child = Child("tidegate.lab.prefetch.publishers_process", arguments)
        stack.enter_context(child)
        child.hear(bool, ANSWER_TIMEOUT_S)
        scene = Scene(engine, setting, url, proxy, child)
        scene.wait_for_messages()
        yield scene


async def _make_queue(engine: Engine, url: str) -> None:
    if engine is Engine.TIDEGATE:
        async with tidegate.connect(url) as client:
            await client.create_queue(
                QUEUE,
                durable=False,
                policy=QueuePolicy(
                    length_max=LENGTH_MAX, overflow=Overflow.DROP, dead_letter="", deliveries_max=0
                ),
            )
        return
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(
            QUEUE,
            durable=True,
            arguments={"x-max-length": LENGTH_MAX, "x-overflow": "drop-head"},
        )


async def _set_goal(url: str, goal: PrefetchGoal | None) -> None:
    async with tidegate.connect(url) as client:
        await client.set_policy(QUEUE, prefetch=goal)


async def _purge(url: str) -> None:
    async with tidegate.connect(url) as client:
        await client.purge(QUEUE)


async def _waiting(engine: Engine, url: str) -> int:
    if engine is Engine.TIDEGATE:
        async with tidegate.connect(url) as client:
            stats = await client.stats()
            queues = [one for node in stats.nodes for one in node.queues if one.name == QUEUE]
            return sum(one.waiting for one in queues)
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(QUEUE, passive=True)
        return int(declared.declaration_result.message_count or 0)
