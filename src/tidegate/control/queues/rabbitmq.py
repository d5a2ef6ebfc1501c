"""`tidegate steer`: waits for the lock of an elastic queue on RabbitMQ and runs its loop.

    connect → take the lock (wait while another process has it) → take over → period, period, …

RabbitMQ ends the lock with the connection. After a lost connection everything starts again, and
another process may get the lock first. In recommend mode no lock is needed and nothing is changed.

Stopping it at any moment leaves the queue with its replicas and shares. Producers and consumers
continue without a controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.control.queues.loop import return_to_alias
from tidegate.core.decisions import AnyAction, Decision, Exchange, Retire
from tidegate.core.errors import QueueNotExisting, RetryLater, TidegateError, Unavailable
from tidegate.core.store import Clock
from tidegate.core.topology import ALIAS, ControlMode, Range, ReplicaState, Scaling, replica_name
from tidegate.engines.rabbitmq.actuator import RabbitmqActuator
from tidegate.engines.rabbitmq.client import RabbitmqAddress
from tidegate.engines.rabbitmq.management import ManagementApi
from tidegate.engines.rabbitmq.queues import arguments_of
from tidegate.engines.rabbitmq.sensor import RabbitmqSample, RabbitmqSensor
from tidegate.engines.rabbitmq.topology import ControllerConnection, ElasticTopology, read_topology
from tidegate.fleet.processes import ReplicaWorkers

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 5.0
# Replicas per step when the queue is to become a plain queue: all at once.
_ALL = 1000

# Called after each period with the topology, the sample and the decision.
OnDecision = Callable[[ElasticTopology, RabbitmqSample, Decision], None]


class RabbitmqController:
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
        seen: OnDecision,
        crew: LocalWorkers | None = None,
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
                async with ControllerConnection(self._address) as link:
                    has_connected = True
                    await self._check_queue(link)
                    if self._scaling.steering is ControlMode.RECOMMEND:
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
        async with ControllerConnection(self._address) as link:
            if await self._find(link) is None:
                return False
            actuator = await self._taken_over(link)
            going = msgspec.structs.replace(
                self._scaling,
                replicas=Range(0, max(self._scaling.replicas.max, 1)),
                steering=ControlMode.MANUAL,
                replicas_wanted=0,
                step_max=_ALL,
            )
            if actuator.topology.replicas:
                self._say(f"waiting until the replicas of {self._queue} are empty")
            await self._periods(link, actuator, going, lambda: not actuator.topology.replicas)
            await actuator.make_plain()
            return True

    async def _recommend(self, link: ControllerConnection, once: bool) -> None:
        """Sample and decide without the lock, and change nothing.

        Another process may control the queue at the same time.
        """
        sensor = RabbitmqSensor(link, self._management)
        autoscaler = Autoscaler(AcceptedModels(None).complete("", self._scaling))
        while True:
            due_at = self._clock.monotonic() + self._scaling.polling_interval_s
            # A plain queue is treated as a topology without replicas.
            topology = await self._find(link) or ElasticTopology(queue=self._queue, version=0)
            look = await sensor.poll(topology, self._clock.monotonic)
            decision = without_unmeasured(autoscaler.decide(look.sample), look)
            await self._journal.write(decision, NO_EPOCH)
            self._seen(topology, look, decision)
            if once:
                return
            _end_if_cancelled()
            await asyncio.sleep(max(due_at - self._clock.monotonic(), 0.0))

    async def _check_queue(self, link: ControllerConnection) -> None:
        """Raise `QueueNotExisting` before a mistyped name creates exchanges and queues."""
        if await link.length(self._queue) is None:
            raise QueueNotExisting(
                f"there is no queue {self._queue}: create it first; a worker that starts does"
            )

    async def inspect(self) -> tuple[ElasticTopology, RabbitmqSample] | None:
        """Return the topology and a sample without taking the lock; None if the queue is plain.

        Raises `QueueNotExisting`.
        """
        async with ControllerConnection(self._address) as link:
            await self._check_queue(link)
            topology = await self._find(link)
            if topology is None:
                return None
            sensor = RabbitmqSensor(link, self._management)
            return topology, await sensor.poll(topology, self._clock.monotonic)

    async def _find(self, link: ControllerConnection) -> ElasticTopology | None:
        return await read_topology(await link.channel(), self._queue, is_empty_fine=True)

    async def _taken_over(self, link: ControllerConnection) -> RabbitmqActuator:
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
        link: ControllerConnection,
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


# Worker processes that come with each replica on RabbitMQ, on the controller's own computer.
#
# Each replica gets the configured number of workers. A worker is bound to its replica by the
# variable TIDEGATE_REPLICA and ends with it. All workers drain and end when the controller ends.
# Users who want workers to outlive the controller start them separately.


_DRAIN_S = 30.0
# There are no machines here, so workers have no machine id.
_NO_MACHINE = 0


class LocalWorkers:
    """The local workers of all replicas of one queue."""

    def __init__(self, target: str, url: str, workers_per_replica: int) -> None:
        self._target = target
        self._url = url
        self._count = workers_per_replica
        self._workers: dict[int, ReplicaWorkers] = {}

    async def follow(self, topology: ElasticTopology) -> None:
        """Make one step towards workers at every replica that is not starting, and at no other."""
        there = {one.number for one in topology.replicas if one.state is not ReplicaState.STARTING}
        for number in there - self._workers.keys():
            name = replica_name(topology.queue, number)
            self._workers[number] = ReplicaWorkers(name, self._target, _NO_MACHINE, _DRAIN_S)
        for number, workers in list(self._workers.items()):
            await workers.adjust(self._count if number in there else 0, self._url, {})
            if number not in there and workers.are_gone:
                del self._workers[number]

    @property
    def trouble(self) -> str:
        """The workers' problems as one text; empty if there are none."""
        return "; ".join(filter(None, (workers.trouble for workers in self._workers.values())))

    async def stop(self) -> None:
        """End all workers and wait for their drain."""
        await asyncio.gather(*(workers.stop() for workers in self._workers.values()))
        self._workers.clear()


# The loop of one elastic queue on RabbitMQ: the same `Autoscaler`, another engine.
#
#     reconcile → sample → decide → act → record
#
# The process that holds the queue's lock runs one period after the other:
#
# - A starting replica whose queue exists begins to serve.
# - A replica whose queue is gone is removed from the topology.
# - The consumers of a draining, empty replica are asked to leave it.
# - The autoscaler decides everything else.
#
# The loop can be stopped at any step. The topology is written before each change, so the next
# process that gets the lock continues from there.


# The journal's writes carry a leader's epoch on nodes. Here the queue's lock protects them, and the
# connection holds the lock.
NO_EPOCH = 0


class RabbitmqLoop:
    """Runs the periods of one elastic queue while this process holds its lock."""

    def __init__(
        self,
        sensor: RabbitmqSensor,
        actuator: RabbitmqActuator,
        journal: Journal,
        scaling: Scaling,
        monotonic: Callable[[], float],
    ) -> None:
        self._sensor = sensor
        self._actuator = actuator
        self._journal = journal
        self._monotonic = monotonic
        self._autoscaler = Autoscaler(AcceptedModels(None).complete("", scaling))
        # Replicas asked to end that had no messages and no clients in the last sample.
        self._quiet: set[int] = set()
        # The sample of the last period.
        self.last: RabbitmqSample | None = None

    @property
    def scaling(self) -> Scaling:
        return self._autoscaler.scaling

    @scaling.setter
    def scaling(self, scaling: Scaling) -> None:
        self._autoscaler.scaling = AcceptedModels(None).complete("", scaling)

    async def run_once(self) -> Decision:
        """Run one period and return its decision, with the result of each action."""
        look = await self._keep_up()
        self.last = look
        leaving = {one.number for one in self._actuator.topology.replicas if one.is_leaving}
        decision = self._decide(look)
        decision = await self._act(decision)
        self._quiet = {
            one.number for one in look.sample.replicas if one.is_empty and one.number in leaving
        }
        await self._journal.write(decision, NO_EPOCH)
        return decision

    async def _sense(self) -> RabbitmqSample:
        actuator = self._actuator
        return await self._sensor.poll(actuator.topology, self._monotonic, actuator.take_moved())

    async def _keep_up(self) -> RabbitmqSample:
        look, actuator = await self._sense(), self._actuator
        before = actuator.topology
        for number in look.missing:
            one = actuator.topology.replica(number)
            if one is not None and one.state is not ReplicaState.STARTING:
                log.warning("replica %s of %s is gone: forgotten", number, look.sample.queue)
                await actuator.remove_replica(number)
        for replica in look.sample.replicas:
            if replica.state is ReplicaState.STARTING and replica.reachable:
                await actuator.serve(replica.number)
            is_drained = replica.state is ReplicaState.DRAINING and not replica.share
            if is_drained and replica.reachable and not replica.waiting:
                await actuator.release_consumers(replica.number)
        return look if actuator.topology is before else await self._sense()

    def _decide(self, look: RabbitmqSample) -> Decision:
        decision = without_unmeasured(self._autoscaler.decide(look.sample), look)
        return msgspec.structs.replace(
            decision,
            actions=[
                *(one for one in decision.actions if self._is_for_us(one, look)),
                *return_to_alias(look.sample),
            ],
        )

    def _is_for_us(self, action: AnyAction, look: RabbitmqSample) -> bool:
        match action:
            case Exchange(source) if source == ALIAS:
                # The alias's own consumers work off its messages. A transfer would mark them as
                # redelivered.
                return not look.alias_consumers
            case Retire(number):
                # A consumer that dies leaves the holders' queue just before its messages return.
                # Retire a replica only if two samples in a row show it empty.
                return number in self._quiet
        return True

    async def _act(self, decision: Decision) -> Decision:
        failures = []
        for action in decision.actions:
            failure = await self._actuator.execute(action)  # type: ignore[arg-type]
            if failure is not None:
                failures.append(failure)
        return msgspec.structs.replace(
            decision,
            carried_out=not failures,
            outcome="; ".join(dict.fromkeys(failures)),
        )


def without_unmeasured(decision: Decision, look: RabbitmqSample) -> Decision:
    """Return the decision without the inputs that RabbitMQ did not measure.

    Adds a sentence with the missing inputs if the management API could not be asked.
    """
    known = {name: figure for name, figure in decision.inputs.items() if name not in look.unknown}
    missing = [name for name in decision.inputs if name not in known]
    words = f"Not measured: {', '.join(missing)} ({look.trouble})." if look.trouble else ""
    return msgspec.structs.replace(
        decision, inputs=known, reason=" ".join(filter(None, (decision.reason, words)))
    )
