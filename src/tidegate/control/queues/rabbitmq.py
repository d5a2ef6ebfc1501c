"""`tidegate steer`: waits for the lock of an elastic queue on RabbitMQ and runs its loop.

    connect → take the lock (wait while another process has it) → take over → period, period, …

RabbitMQ ends the lock with the connection. After a lost connection everything starts again, and
another process may get the lock first. In recommend mode no lock is needed and nothing is changed.

Stopping it at any moment leaves the queue with its replicas and shares. Producers and consumers
continue without a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.adapters.rabbitmq.address import RabbitmqAddress
from tidegate.adapters.rabbitmq.elastic.actuator import RabbitmqActuator
from tidegate.adapters.rabbitmq.elastic.ledger import read_topology
from tidegate.adapters.rabbitmq.elastic.link import SteererLink
from tidegate.adapters.rabbitmq.elastic.sensor import Look, RabbitmqSensor
from tidegate.adapters.rabbitmq.elastic.topology import ElasticTopology
from tidegate.adapters.rabbitmq.management import ManagementApi
from tidegate.adapters.rabbitmq.queues import arguments_of
from tidegate.control.autoscaler import Autoscaler
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.rabbitmq_loop import NO_EPOCH, RabbitmqLoop, by_what_is_known
from tidegate.control.replica_crew import ReplicaCrew
from tidegate.core.errors import QueueNotExisting, RetryLater, TidegateError, Unavailable
from tidegate.core.ports import Clock
from tidegate.core.scaling import Range, Scaling, Steering
from tidegate.core.steering import Decision

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 5.0
# Replicas per step when the queue is to become a plain queue: all at once.
_ALL = 1000

# Called after each period with the topology, the sample and the decision.
Seen = Callable[[ElasticTopology, Look, Decision], None]


class RabbitmqSteering:
    """Controls one elastic queue while it runs."""

    def __init__(
        self,
        address: RabbitmqAddress,
        queue: str,
        scaling: Scaling,
        management: ManagementApi | None,
        journal: Journal,
        *,
        say: Callable[[str], None],
        seen: Seen,
        crew: ReplicaCrew | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._address = address
        self._queue = queue
        self._scaling = scaling
        self._management = management
        self._journal = journal
        self._say = say
        self._seen = seen
        self._crew = crew
        self._clock = clock or Clock()

    async def run(self, *, once: bool = False) -> None:
        """Run until cancelled, or for one period with `once`.

        Reconnects after a lost connection, with a backoff. Raises `RetryLater` if the first
        connection fails, `Unavailable` if `once` is set and the connection is lost, and
        `QueueNotExisting`.
        """
        backoff_s, has_connected = _BACKOFF_FIRST_S, False
        while True:
            try:
                async with SteererLink(self._address) as link:
                    has_connected = True
                    await self._check_queue(link)
                    if self._scaling.steering is Steering.RECOMMEND:
                        backoff_s = _BACKOFF_FIRST_S
                        await self._recommend(link, once)
                        return
                    actuator = await self._taken_over(link)
                    backoff_s = _BACKOFF_FIRST_S
                    await self._periods(link, actuator, self._scaling, lambda: once)
                    return
            except RetryLater as failure:
                if not has_connected:
                    raise
                if once:
                    raise Unavailable(
                        f"{failure}: run it again when RabbitMQ is well; that goes on from here"
                    ) from failure
                self._say(f"{failure}; trying again")
                _end_if_cancelled()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2.0 * backoff_s, _BACKOFF_MAX_S)

    async def end(self) -> bool:
        """Drain and remove all replicas; return False if the queue was already plain."""
        async with SteererLink(self._address) as link:
            if await self._find(link) is None:
                return False
            actuator = await self._taken_over(link)
            going = msgspec.structs.replace(
                self._scaling,
                replicas=Range(0, max(self._scaling.replicas.max, 1)),
                steering=Steering.MANUAL,
                replicas_wanted=0,
                step_max=_ALL,
            )
            if actuator.topology.replicas:
                self._say(f"waiting until the replicas of {self._queue} are empty")
            await self._periods(link, actuator, going, lambda: not actuator.topology.replicas)
            await actuator.give_up()
            return True

    async def _recommend(self, link: SteererLink, once: bool) -> None:
        """Sample and decide without the lock, and change nothing.

        Another process may control the queue at the same time.
        """
        sensor = RabbitmqSensor(link, self._management)
        autoscaler = Autoscaler(Learned(None).complete("", self._scaling))
        while True:
            due_at = self._clock.monotonic() + self._scaling.polling_interval_s
            # A plain queue is treated as a topology without replicas.
            topology = await self._find(link) or ElasticTopology(queue=self._queue, version=0)
            look = await sensor.look(topology, self._clock.monotonic)
            decision = by_what_is_known(autoscaler.decide(look.sample), look)
            await self._journal.write(decision, NO_EPOCH)
            self._seen(topology, look, decision)
            if once:
                return
            _end_if_cancelled()
            await asyncio.sleep(max(due_at - self._clock.monotonic(), 0.0))

    async def _check_queue(self, link: SteererLink) -> None:
        """Raise `QueueNotExisting` before a mistyped name creates exchanges and queues."""
        if await link.length(self._queue) is None:
            raise QueueNotExisting(
                f"there is no queue {self._queue}: create it first; a worker that starts does"
            )

    async def look(self) -> tuple[ElasticTopology, Look] | None:
        """Return the topology and a sample without taking the lock; None if the queue is plain.

        Raises `QueueNotExisting`.
        """
        async with SteererLink(self._address) as link:
            await self._check_queue(link)
            topology = await self._find(link)
            if topology is None:
                return None
            sensor = RabbitmqSensor(link, self._management)
            return topology, await sensor.look(topology, self._clock.monotonic)

    async def _find(self, link: SteererLink) -> ElasticTopology | None:
        return await read_topology(await link.channel(), self._queue, is_empty_fine=True)

    async def _taken_over(self, link: SteererLink) -> RabbitmqActuator:
        if not await link.has_lock(self._queue):
            self._say(f"somebody else steers {self._queue}: waiting until it ends")
            await link.wait_for_lock(self._queue)
        actuator = RabbitmqActuator(link, self._queue)
        topology = await actuator.take_over(await self._arguments())
        self._say(f"steering {self._queue}: {_counted(len(topology.replicas))} now")
        return actuator

    async def _arguments(self) -> dict[str, Any]:
        """Return the arguments for new replica queues: the queue's own, else those of the URL."""
        if self._management is not None:
            try:
                for one in await self._management.queues(self._queue):
                    if one.name == self._queue:
                        return one.arguments
            except TidegateError:
                pass  # The samples report that the management API cannot be asked.
        return arguments_of(self._address)

    async def _periods(
        self,
        link: SteererLink,
        actuator: RabbitmqActuator,
        scaling: Scaling,
        is_over: Callable[[], bool],
    ) -> None:
        sensor = RabbitmqSensor(link, self._management)
        loop = RabbitmqLoop(sensor, actuator, self._journal, scaling, self._clock.monotonic)
        while True:
            due_at = self._clock.monotonic() + scaling.polling_interval_s
            decision = await loop.run_once()
            if self._crew is not None:
                await self._crew.follow(actuator.topology)
            assert loop.last is not None
            self._seen(actuator.topology, loop.last, decision)
            if is_over():
                return
            _end_if_cancelled()
            await asyncio.sleep(max(due_at - self._clock.monotonic(), 0.0))


def _end_if_cancelled() -> None:
    """Raise `CancelledError` if this task was cancelled.

    Libraries may swallow a cancellation: `asyncio.wait_for` does so in Python 3.11.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"
