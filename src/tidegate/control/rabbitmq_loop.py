"""The loop over an elastic queue on RabbitMQ: the same Autoscaler, another engine.

    keep up → sense → decide → act → journal, once a period, by whoever has the queue's lock

What comes up serves, what is gone is forgotten, what is draining and empty is let go by its
consumers; all else the Autoscaler says. Whoever is stopped, at whatever step, leaves everything as
it is, and the next one goes on from there.
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

# Journals of nodes write under a leader's epoch; here the lock is the connection.
NO_EPOCH = 0


class RabbitmqLoop:
    """Steers one elastic queue while its lock is held."""

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
        # Leaving replicas that had nothing and nobody at the last look.
        self._quiet: set[int] = set()
        # What was seen in the last period.
        self.last: Look | None = None

    @property
    def scaling(self) -> Scaling:
        return self._autoscaler.scaling

    @scaling.setter
    def scaling(self, scaling: Scaling) -> None:
        self._autoscaler.scaling = Learned(None).complete("", scaling)

    async def run_once(self) -> Decision:
        """One period."""
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
                # Its own consumers work it off: nothing has to be moved, and flagged by that.
                return not look.alias_consumers
            case Retire(number):
                # Who dies leaves the holders a moment before its messages are back: look twice.
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
    """The same decision, without figures that nobody has measured."""
    known = {name: figure for name, figure in decision.inputs.items() if name not in look.unknown}
    missing = [name for name in decision.inputs if name not in known]
    words = f"Not measured: {', '.join(missing)} ({look.trouble})." if look.trouble else ""
    return msgspec.structs.replace(
        decision, inputs=known, reason=" ".join(filter(None, (decision.reason, words)))
    )
