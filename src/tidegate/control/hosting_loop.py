"""The loop of HTTP services: look, judge, decide, order, write down; each while this node leads.

    doors, instances → Monitoring → Configuration → HostingStore → journal
                            ↘ violations, alarms, disagreement → telemetry, alerts

Every order carries the leader's epoch. Whatever a leader was in the middle of stands in the store:
instances by their state and weight, admission, the budget; so the next one goes on. One service
that fails is left to its next period, and holds up no other.
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

# Doors report each second: what they say is to be acted on at once.
PERIOD_S = 0.5
# With no service there is nothing to look at but whether one came.
IDLE_S = 1.0


class HostingLoop:
    """Keeps the agreements of all HTTP services."""

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
        """One period of every service, if it is time."""
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
                # Nothing is decided about it any more: whoever looks at it must see that.
                said = f"a bug of ours keeps it from being looked after: {result!r}; see the log"
                if service.detail != said:
                    await self._store.set_service_detail(service.spec.name, said, epoch)

    def stand_down(self) -> None:
        """Another leads: what was begun is left to it, and what was remembered forgotten."""
        self._due_at = float("-inf")
        for service in self.services.values():
            service.stop()
        self.services.clear()
