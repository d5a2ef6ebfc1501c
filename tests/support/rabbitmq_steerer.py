"""Steering an elastic queue of RabbitMQ within a test, period by period and without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rabbitmq import VirtualHost
from waiting import eventually_async

from tidegate.control.journal import Journal
from tidegate.control.queues.rabbitmq import RabbitmqLoop
from tidegate.core.decisions import Decision
from tidegate.core.topology import ControlMode, Range, Scaling
from tidegate.engines.rabbitmq.actuator import RabbitmqActuator
from tidegate.engines.rabbitmq.client import parse_address
from tidegate.engines.rabbitmq.management import ManagementApi
from tidegate.engines.rabbitmq.sensor import RabbitmqSensor
from tidegate.engines.rabbitmq.topology import ControllerConnection, ElasticTopology

QUEUE = "orders"


def wanted(replicas: int) -> Scaling:
    """So many, as a person has said."""
    return Scaling(
        replicas=Range(0, 8), steering=ControlMode.MANUAL, replicas_wanted=replicas, step_max=8
    )


class Steerer:
    """Who has the lock."""

    def __init__(
        self, url: str, scaling: Scaling, *, management: ManagementApi | None = None
    ) -> None:
        self.link = ControllerConnection(parse_address(url))
        self.actuator = RabbitmqActuator(self.link, QUEUE)
        self.decisions: list[Decision] = []
        self._loop = RabbitmqLoop(
            RabbitmqSensor(self.link, management),
            self.actuator,
            Journal(self, None, time.time),
            scaling,
            time.monotonic,
        )
        self._arguments = {} if "queue_type=quorum" not in url else {"x-queue-type": "quorum"}

    async def __aenter__(self) -> Self:
        await self.link.open()
        try:
            await self.link.wait_for_lock(QUEUE)
            await self.actuator.take_over(self._arguments)
        except BaseException:
            await self.link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()

    @property
    def topology(self) -> ElasticTopology:
        return self.actuator.topology

    def scale(self, replicas: int) -> None:
        """Another number, from the next period on."""
        self._loop.scaling = wanted(replicas)

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None:
        pass

    async def period(self) -> Decision:
        decision = await self._loop.run_once()
        self.decisions.append(decision)
        return decision

    async def until(self, is_so: Callable[[ElasticTopology], bool]) -> None:
        """Period after period."""

        async def is_so_after_a_period() -> bool:
            await self.period()
            return is_so(self.topology)

        await eventually_async(is_so_after_a_period)

    async def settle(self, replicas: int) -> None:
        """Until there are so many, all serving with a share."""
        await self.until(lambda topology: is_settled(topology, replicas))


def is_settled(topology: ElasticTopology, replicas: int) -> bool:
    weights = [one.weight for one in topology.replicas]
    return len(weights) == replicas and (not weights or min(weights) > 0)


def management_of(host: VirtualHost) -> ManagementApi:
    return ManagementApi(host.management_url, "guest", "guest", host.name)
