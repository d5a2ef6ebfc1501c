"""Who steers an elastic queue on RabbitMQ: waits for its lock, takes over, runs the loop.

    connect → lock (another one steers: wait, and say so) → take over → a period, and another …

Whatever ends the connection ends the lock: then everything begins anew, and another steerer may
have come first. Stopped at any moment it leaves the queue as it is, with its replicas and shares;
without a steerer they stay as they are, and consumers and producers notice nothing.
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
# All at once, when the queue is to be plain again.
_ALL = 1000

# What was seen, and what was decided about it.
Seen = Callable[[ElasticTopology, Look, Decision], None]


class RabbitmqSteering:
    """Steers one queue for as long as it runs."""

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
        """For ever, or one period; a lost connection is waited for, unless it never was."""
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
        """Drain every replica, then be a plain queue again; False: it was one."""
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
        """Look and decide, beside whoever steers: no lock is taken, and nothing is changed."""
        sensor = RabbitmqSensor(link, self._management)
        autoscaler = Autoscaler(Learned(None).complete("", self._scaling))
        while True:
            due_at = self._clock.monotonic() + self._scaling.polling_interval_s
            # A plain queue is one without replicas.
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
        """A name that was mistyped is none to make exchanges and queues for."""
        if await link.length(self._queue) is None:
            raise QueueNotExisting(
                f"there is no queue {self._queue}: create it first; a worker that starts does"
            )

    async def look(self) -> tuple[ElasticTopology, Look] | None:
        """How it is, without a lock; None: a plain queue. QueueNotExisting."""
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
        """What replicas are to be like: as the queue is, or as the URL says."""
        if self._management is not None:
            try:
                for one in await self._management.queues(self._queue):
                    if one.name == self._queue:
                        return one.arguments
            except TidegateError:
                pass  # the samples say that it cannot be asked
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
    """Libraries below us may swallow a cancellation: `asyncio.wait_for` does in Python 3.11."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"
