"""The loop of all HTTP services: one period of each, concurrently, while this node leads.

Theory of operation
-------------------

The leader calls `run_once` in every round. Every PERIOD_S it reads the services from the store,
keeps one `HostedServiceLoop` for each, and runs their periods concurrently:

    doors, instances → ServiceMonitor → ServiceAutoscaler → HostingStore → journal
                            ↘ violations, alarms, door disagreement → telemetry, alerts

A service that was deleted loses its loop, and a new one gets a loop with the agreement status that
the store has kept. Every write carries the leader's epoch.

Failures:

- `StaleEpoch` leaves `run_once`. The leader then calls `stand_down`, which drops all loops.
- Another `TidegateError` of one service is logged. The service keeps its state until its next
  period, and the others are not affected.
- Any other exception is a bug. It is logged, and the service's detail says so, because otherwise
  users would not see that the service is no longer controlled.

The store holds everything that a leader began: the state and weight of each instance, the admission
limit and the error budget. The next leader continues from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.control.alerts import Alerts
from tidegate.control.hosted_service_loop import HostedServiceLoop
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.probe import Probe
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.hosting import HostingStore
from tidegate.core.ports import Clock
from tidegate.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from tidegate.control.fleet_loop import FleetLoop

log = logging.getLogger(__name__)

# Seconds. Doors report every second, and a period should act on a report soon after it comes.
PERIOD_S = 0.5
# Seconds between checks for new services while there are none.
IDLE_S = 1.0


class HostingLoop:
    """Runs the periods of all HTTP services."""

    def __init__(
        self,
        store: HostingStore,
        journal: Journal,
        alerts: Alerts,
        *,
        fleet_loop: FleetLoop | None = None,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
        new_probe: Callable[[], Probe] = Probe,
        learned: Learned | None = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._alerts = alerts
        self._fleet_loop = fleet_loop
        self._recorder = recorder
        self._clock = clock or Clock()
        self._new_probe = new_probe
        self._learned = learned
        self._due_at = float("-inf")
        self.services: dict[str, HostedServiceLoop] = {}

    async def run_once(self, now: float, epoch: int) -> None:
        """Run one period of every service, unless the last one was less than PERIOD_S ago.

        Raises `StaleEpoch` if this node no longer leads.
        """
        if now < self._due_at:
            return
        services = await self._store.services()
        self._due_at = now + (PERIOD_S if services else IDLE_S)
        names = {service.spec.name for service in services}
        for name in self.services.keys() - names:
            self.services.pop(name).stop()
        standings = await self._store.standings() if names - self.services.keys() else {}
        for name in names - self.services.keys():
            self.services[name] = HostedServiceLoop(
                name,
                self._store,
                self._journal,
                self._alerts,
                standings=standings,
                fleet_loop=self._fleet_loop,
                recorder=self._recorder,
                clock=self._clock,
                probe=self._new_probe(),
                learned=self._learned,
            )
        results = await asyncio.gather(
            *(self.services[one.spec.name].run_once(one, now, epoch) for one in services),
            return_exceptions=True,
        )
        for service, result in zip(services, results, strict=True):
            if isinstance(result, StaleEpoch):
                raise result
            if isinstance(result, TidegateError):
                log.warning("service %s is left as it is: %s", service.spec.name, result)
            elif isinstance(result, BaseException):
                log.error("a bug in the loop of service %s", service.spec.name, exc_info=result)
                # Show it to users, who would otherwise not see that nothing is decided any more.
                said = f"a bug of ours keeps it from being looked after: {result!r}; see the log"
                if service.detail != said:
                    await self._store.set_service_detail(service.spec.name, said, epoch)

    def stand_down(self) -> None:
        """Stop and forget all service loops, because this node no longer leads."""
        self._due_at = float("-inf")
        for service in self.services.values():
            service.stop()
        self.services.clear()
