"""The loop of one elastic queue on RabbitMQ: the same `Autoscaler`, another engine.

    reconcile → sample → decide → act → record

The process that holds the queue's lock runs one period after the other:

- A starting replica whose queue exists begins to serve.
- A replica whose queue is gone is removed from the topology.
- The consumers of a draining, empty replica are asked to leave it.
- The autoscaler decides everything else.

The loop can be stopped at any step. The topology is written before each change, so the next process
that gets the lock continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from tidegate.adapters.rabbitmq.elastic.actuator import RabbitmqActuator
from tidegate.adapters.rabbitmq.elastic.sensor import Look, RabbitmqSensor
from tidegate.control.autoscaler import Autoscaler
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.upkeep import homecoming
from tidegate.core.replication import ALIAS, ReplicaState
from tidegate.core.scaling import Scaling
from tidegate.core.steering import AnyAction, Decision, Exchange, Retire

log = logging.getLogger(__name__)

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
        self._autoscaler = Autoscaler(Learned(None).complete("", scaling))
        # Replicas asked to end that had no messages and no clients in the last sample.
        self._quiet: set[int] = set()
        # The sample of the last period.
        self.last: Look | None = None

    @property
    def scaling(self) -> Scaling:
        return self._autoscaler.scaling

    @scaling.setter
    def scaling(self, scaling: Scaling) -> None:
        self._autoscaler.scaling = Learned(None).complete("", scaling)

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

    async def _look(self) -> Look:
        actuator = self._actuator
        return await self._sensor.look(actuator.topology, self._monotonic, actuator.moved())

    async def _keep_up(self) -> Look:
        look, actuator = await self._look(), self._actuator
        before = actuator.topology
        for number in look.missing:
            one = actuator.topology.replica(number)
            if one is not None and one.state is not ReplicaState.STARTING:
                log.warning("replica %s of %s is gone: forgotten", number, look.sample.queue)
                await actuator.forget(number)
        for replica in look.sample.replicas:
            if replica.state is ReplicaState.STARTING and replica.reachable:
                await actuator.serve(replica.number)
            is_drained = replica.state is ReplicaState.DRAINING and not replica.share
            if is_drained and replica.reachable and not replica.waiting:
                await actuator.let_go(replica.number)
        return look if actuator.topology is before else await self._look()

    def _decide(self, look: Look) -> Decision:
        decision = by_what_is_known(self._autoscaler.decide(look.sample), look)
        return msgspec.structs.replace(
            decision,
            actions=[
                *(one for one in decision.actions if self._is_for_us(one, look)),
                *homecoming(look.sample),
            ],
        )

    def _is_for_us(self, action: AnyAction, look: Look) -> bool:
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
            failure = await self._actuator.carry_out(action)  # type: ignore[arg-type]
            if failure is not None:
                failures.append(failure)
        return msgspec.structs.replace(
            decision,
            carried_out=not failures,
            outcome="; ".join(dict.fromkeys(failures)),
        )


def by_what_is_known(decision: Decision, look: Look) -> Decision:
    """Return the decision without the inputs that RabbitMQ did not measure.

    Adds a sentence with the missing inputs if the management API could not be asked.
    """
    known = {name: figure for name, figure in decision.inputs.items() if name not in look.unknown}
    missing = [name for name in decision.inputs if name not in known]
    words = f"Not measured: {', '.join(missing)} ({look.trouble})." if look.trouble else ""
    return msgspec.structs.replace(
        decision, inputs=known, reason=" ".join(filter(None, (decision.reason, words)))
    )
