"""The paper's testbed on one machine: a broker, 25 publishers, a network and a consumer.

    publishers ──▶ broker ◀── proxy (6 ms each way) ◀── consumer (1 ms for each message)

Each part is a process of its own. Only the consumer is behind the network, because only its round
trips matter in the paper. The publishers offer more than the consumer can handle, so the queue is
never empty. At its length limit it drops the oldest messages, so it never grows without bound.
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
from tidegate_lab.faults.proxy import ProxyProcess, proxy_at
from tidegate_lab.loadgen.processes import Child
from tidegate_lab.papers.prefetch.consumer_process import (
    ConsumerSetup,
    ControlPrefetch,
    FixPrefetch,
    MeasurementNoise,
    MeterNotes,
    Order,
    ReadNotes,
    SetHandler,
    SetNoise,
)
from tidegate_lab.papers.prefetch.plan import (
    LENGTH_MAX,
    QUEUE,
    WAITING_FIRST,
    BrokerKind,
    MeterTrack,
    Setting,
    TestbedConsumer,
)
from tidegate_lab.papers.prefetch.publishers_process import (
    PAYLOAD_BYTES,
    PublisherTask,
    PublishSpeed,
)
from tidegate_lab.peers.servers import rabbitmq_server, tidegate_server
from tidegate_lab.report import ExperimentFailed

__all__ = ["PAYLOAD_BYTES", "ConsumerUnderTest", "ProcessTestbed", "process_testbed"]

ANSWER_TIMEOUT_S = 60.0

Answer = TypeVar("Answer")


class ConsumerUnderTest:
    """The parent's side of a consumer under test, which is a child process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.track = MeterTrack()

    def set_prefetch(self, prefetch: int) -> None:
        self._ask(FixPrefetch(prefetch), bool)

    def set_handler(self, handler_s: float) -> None:
        self._ask(SetHandler(handler_s), bool)

    def steer(self, goal: PrefetchGoal) -> None:
        self._ask(ControlPrefetch(goal), bool)

    def blur(self, blur: MeasurementNoise) -> None:
        self._ask(SetNoise(blur), bool)

    def watch(self, seconds: float) -> MeterTrack:
        """Wait for `seconds`, and return the notes of that time; `track` keeps them too."""
        began_at = self._read()
        time.sleep(seconds)
        self._read()
        return self.track.since(began_at)

    def _read(self) -> float:
        """Read the consumer's new notes into `track`, and return the time of the last note."""
        read = self._ask(ReadNotes(), MeterNotes)
        self.track.add(read.notes, read.steps)
        return self.track.notes[-1].at

    def _ask(self, order: Order, kind: type[Answer]) -> Answer:
        self._child.say(order)
        return self._child.hear(kind, ANSWER_TIMEOUT_S)


class ProcessTestbed:
    """A testbed of real processes."""

    def __init__(
        self, engine: BrokerKind, setting: Setting, url: str, proxy: ProxyProcess, publishers: Child
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
    def consumer(self, prefetch: int) -> Iterator[ConsumerUnderTest]:
        """Run a consumer process behind the network until the block ends."""
        place = ConsumerSetup(self.network.url, QUEUE, prefetch, self.setting.handler_s)
        arguments = [msgspec.json.encode(place).decode()]
        with Child("tidegate_lab.papers.prefetch.consumer_process", arguments) as child:
            child.hear(bool, ANSWER_TIMEOUT_S)
            yield ConsumerUnderTest(child)

    def publish(self, times: float) -> int:
        """Multiply the publishers' rate by `times`, and return the messages published so far."""
        self._publishers.say(PublishSpeed(times))
        return self._publishers.hear(int, ANSWER_TIMEOUT_S)

    def steer(self, consumer: TestbedConsumer, goal: PrefetchGoal) -> None:
        """Start the control loop: in the worker on RabbitMQ, in the node on Tidegate."""
        if self.engine is BrokerKind.RABBITMQ:
            consumer.steer(goal)
        else:
            asyncio.run(_set_goal(self.url, goal))

    def steer_no_more(self) -> None:
        """Remove the goal of the queue on Tidegate; a loop in a worker ends with the worker."""
        if self.engine is BrokerKind.TIDEGATE:
            asyncio.run(_set_goal(self.url, None))

    def waiting(self) -> int:
        """Return the messages in the queue that are not delivered."""
        return asyncio.run(_waiting(self.engine, self.url))

    def purge(self) -> None:
        """Delete the waiting messages."""
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
def process_testbed(
    engine: BrokerKind, setting: Setting, *, frugal: bool = False
) -> Iterator[ProcessTestbed]:
    """Run a fresh broker with publishers until the block ends; its queue has messages already.

    A `frugal` broker uses at most one core; it is meant for tests, not for measurements.
    """
    with contextlib.ExitStack() as stack:
        if engine is BrokerKind.RABBITMQ:
            url = stack.enter_context(rabbitmq_server(frugal=frugal)).url
        else:
            server = stack.enter_context(tidegate_server())
            url = f"tidegate://127.0.0.1:{server.port}"
        asyncio.run(_make_queue(engine, url))
        proxy = stack.enter_context(proxy_at(url, setting.delay_s))
        press = PublisherTask(
            url, QUEUE, setting.publishers, setting.pause_s, setting.pause_deviation_s
        )
        arguments = [msgspec.json.encode(press).decode()]
        child = Child("tidegate_lab.papers.prefetch.publishers_process", arguments)
        stack.enter_context(child)
        child.hear(bool, ANSWER_TIMEOUT_S)
        scene = ProcessTestbed(engine, setting, url, proxy, child)
        scene.wait_for_messages()
        yield scene


async def _make_queue(engine: BrokerKind, url: str) -> None:
    if engine is BrokerKind.TIDEGATE:
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


async def _waiting(engine: BrokerKind, url: str) -> int:
    if engine is BrokerKind.TIDEGATE:
        async with tidegate.connect(url) as client:
            stats = await client.stats()
            queues = [one for node in stats.nodes for one in node.queues if one.name == QUEUE]
            return sum(one.waiting for one in queues)
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(QUEUE, passive=True)
        return int(declared.declaration_result.message_count or 0)
