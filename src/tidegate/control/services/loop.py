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

- `StaleEpoch` leaves `run_once`. The leader then calls `reset`, which drops all loops.
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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidegate.agreements.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreements.ledger import LedgerEntry, StoredAgreementStatus
from tidegate.control.alerts import AgreementAlerts, AgreementSubject, Alerts, CapacityShortage
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels, with_learned
from tidegate.control.services.measurement import (
    Disagreements,
    HttpProbe,
    MonitoringResult,
    ServiceMonitor,
)
from tidegate.control.services.performance import ServiceSample
from tidegate.control.services.sizing import ServiceAutoscaler, StoredServiceState
from tidegate.core.decisions import (
    AddInstance,
    Admit,
    AnyAction,
    Decision,
    DrainInstance,
    MakeSpare,
    Promote,
    RemoveInstance,
    SetConcurrency,
    Weigh,
)
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.runtime import crash_point
from tidegate.core.services import (
    HostingStore,
    InstanceState,
    Service,
    ServiceSpec,
    decision_subject,
    probe_mark,
)
from tidegate.core.store import Clock
from tidegate.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from tidegate.control.machines import FleetLoop


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
        new_probe: Callable[[], HttpProbe] = HttpProbe,
        learned: AcceptedModels | None = None,
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

    def reset(self) -> None:
        """Stop and forget all service loops, because this node no longer leads."""
        self._due_at = float("-inf")
        for service in self.services.values():
            service.stop()
        self.services.clear()


# The loop of one HTTP service: measure, decide, order, record.
#
# Theory of operation
# -------------------
#
# `HostingLoop` calls `run_once` for each service about twice a second while this node leads. One
# period does this:
#
#     1. agreement  read the agreement of the service; it may have changed since the last period
#     2. measure    `ServiceMonitor` turns door samples into closed windows and one joint sample
#     3. report     closed windows, instance starts and probe results go to alerts and telemetry
#     4. decide     `ServiceAutoscaler` returns a `Decision` with actions
#     5. keep       the wanted number and the measured capacity are stored, before any order
#     6. act        the actions change rows of instances in the store; machines and doors follow
#     them
#     7. record     the service's detail, the agreement's status and the decision are stored
#
# Order matters. Windows are reported before anything is ordered: a window is closed once, and an
# order may fail. The wanted number is stored before the orders, so that the next leader can
# complete a change that was interrupted between two orders.
#
# Failures:
#
# - An agreement that cannot be read changes nothing about the running instances. The service's
#   detail names the problem.
# - If no door reports, the load is unknown. Failed instances are still replaced, and the wanted
#   number does not change.
# - Errors of the store leave `run_once`, and the next period tries again. `StaleEpoch` ends this
#   node's leadership.


_NO_FLEET = "no slot is free, and nobody boots machines here: set fleet.provider"


class HostedServiceLoop:
    """Runs the periods of one HTTP service while this node leads."""

    def __init__(
        self,
        name: str,
        store: HostingStore,
        journal: Journal,
        alerts: Alerts,
        *,
        standings: Mapping[str, bytes],
        fleet_loop: FleetLoop | None,
        recorder: Recorder | None,
        clock: Clock,
        probe: HttpProbe,
        learned: AcceptedModels | None = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._news = AgreementAlerts(AgreementSubject.service(name), journal, alerts, recorder)
        self._standings = standings
        self._fleet_loop = fleet_loop
        self._clock = clock
        self._probe = probe
        self._learned = learned or AcceptedModels(None)
        # The agreement as written, without learned warnings.
        self._promised: Agreement | None = None
        self._said: str | None = None
        self._monitoring: ServiceMonitor | None = None
        self._disagreements = Disagreements()
        self._shortage = CapacityShortage()
        # The last closed window under the current promises, the text of the current remedy, and the
        # text of the shortage. None until a window has closed.
        self._last: tuple[LedgerEntry, str, str] | None = None
        # What the store holds of the last decision; None if it holds nothing.
        self._kept: StoredServiceState | None = None
        self.configuration: ServiceAutoscaler | None = None

    async def run_once(self, service: Service, now: float, epoch: int) -> None:
        """Run one period at `now` (monotonic seconds) under the leader's `epoch`."""
        name = service.spec.name
        try:
            monitoring, configuration = await self._follow(service)
        except AgreementInvalid as error:
            await self._report(service, f"its agreement cannot be read: {error}", epoch)
            return
        instances = await self._store.instances(name)
        samples = await self._store.door_samples(name)
        measured = monitoring.update(samples, instances, now, self._clock.wall())
        # Report windows before ordering anything: a window is closed once, and an order may fail.
        for entry in measured.entries:
            self._news.window(monitoring.agreement, entry)
        for instance, took_s in configuration.performance.see_starts(instances):
            self._news.started(instance, took_s)
        admission = await self._store.admission(name)
        held = service.by_hand.in_flight_max
        self._probe_doors(
            service, monitoring.agreement, measured, now, admission if held is None else held
        )
        decision = configuration.decide(
            ServiceSample(
                at=now,
                service=service,
                instances=instances,
                reading=measured.reading,
                is_silent=measured.is_silent,
                window=measured.window,
                admission=admission,
                slots_free=None if self._fleet_loop is None else self._fleet_loop.slots_free,
                fleet_trouble=(_NO_FLEET if self._fleet_loop is None else self._fleet_loop.trouble),
            )
        )
        lacks = self._shortage.update(configuration.lacks, now)
        if lacks is not None:
            self._news.shortage(monitoring.agreement.name, lacks, self._clock.wall())
        await self._news.write(_doing(decision), epoch)
        await self._remember(service, configuration, epoch)
        await self._act(service, decision, epoch)
        await self._report(service, _detail(monitoring.agreement, configuration), epoch)
        await self._keep(service, monitoring, measured.entries, decision, epoch)
        await self._journal.write(decision, epoch)

    def stop(self) -> None:
        self._probe.stop()

    async def _follow(self, service: Service) -> tuple[ServiceMonitor, ServiceAutoscaler]:
        """Return the monitor and the autoscaler for the agreement as it is written now.

        Raises `AgreementInvalid` if the agreement cannot be read.
        """
        if self._monitoring is None or self.configuration is None or self._said is None:
            agreement = self._promised = self._agreement(service)
            document = await self._store.kept_configuration(service.spec.name)
            self._kept = None if document is None else StoredServiceState.from_json(document)
            # The key contains the service: two services may give their agreements the same name.
            stood = self._standings.get(decision_subject(service.spec.name))
            kept = None if stood is None else StoredAgreementStatus.from_json(stood)
            self._monitoring = ServiceMonitor(agreement, kept)
            self._news.resume(agreement, kept)
            self._shortage = CapacityShortage("" if kept is None else kept.lacks)
            self.configuration = ServiceAutoscaler(agreement, self._kept, by_hand=service.by_hand)
        elif self._said != service.spec.agreement:
            agreement = self._promised = self._agreement(service)
            # Other promises start a new error budget; other bounds do not. What was learned about
            # doors and instances stays in both cases.
            if self._monitoring.follow(agreement):
                # The last window was judged by promises that no longer hold.
                self._last = None
                self._news.resume(agreement, None)
            self.configuration.agreement = agreement
        self._said = service.spec.agreement
        self._move_warnings(self._monitoring, self.configuration)
        return self._monitoring, self.configuration

    def _move_warnings(self, monitoring: ServiceMonitor, configuration: ServiceAutoscaler) -> None:
        """Move the warnings that are learned to where the newest model puts them."""
        assert self._promised is not None, "it was read just now"
        moved, why = with_learned(self._promised, self._learned.warnings(self._promised.name))
        if moved == monitoring.agreement:
            return
        monitoring.move_warnings(moved)
        configuration.agreement = moved
        log.info("warnings of %s: %s", moved.name, " ".join(why))

    def _agreement(self, service: Service) -> Agreement:
        return parse_agreement(service.spec.agreement, f"agreement of {service.spec.name}")

    # Actions

    async def _remember(
        self, service: Service, configuration: ServiceAutoscaler, epoch: int
    ) -> None:
        """Store what was decided before ordering it, so that the next leader can complete it."""
        decided = configuration.to_keep()
        if not decided.is_news(self._kept):
            return
        await self._store.keep_configuration(service.spec.name, decided.to_json(), epoch)
        self._kept = decided
        crash_point("after-service-kept")

    async def _act(self, service: Service, decision: Decision, epoch: int) -> None:
        for action in decision.actions:
            crash_point("before-service-order")
            await self._execute(service.spec, action, epoch)
            crash_point("after-service-order")

    async def _execute(self, spec: ServiceSpec, action: AnyAction, epoch: int) -> None:
        store, name = self._store, spec.name
        match action:
            case AddInstance(count, is_spare):
                for _ in range(count):
                    await store.add_instance(name, 0.0 if is_spare else 1.0, epoch)
                if self._fleet_loop is not None:
                    self._fleet_loop.hurry()
            case Promote(instance_id):
                await store.set_instance(instance_id, epoch, weight=1.0)
            case MakeSpare(instance_id):
                await store.set_instance(instance_id, epoch, weight=0.0)
            case Weigh(weights):
                for instance_id, weight in weights.items():
                    await store.set_instance(instance_id, epoch, weight=weight)
            case SetConcurrency(instance_id, concurrency):
                await store.set_instance(instance_id, epoch, concurrency=concurrency)
            case DrainInstance(instance_id):
                # Only this instance knows its sessions, so doors send them to it for some time.
                until = self._clock.wall() + spec.session_grace_s if spec.sticky else None
                await store.set_instance(
                    instance_id, epoch, state=InstanceState.DRAINING, sessions_until=until
                )
            case RemoveInstance(instance_id):
                await store.remove_instance(instance_id, epoch)
            case Admit(in_flight_max):
                await store.set_admission(name, in_flight_max, epoch)
            case _:
                raise AssertionError(f"{action} is not about a service")

    async def _report(self, service: Service, detail: str, epoch: int) -> None:
        if service.detail != detail:
            await self._store.set_service_detail(service.spec.name, detail, epoch)

    # Status and probe

    async def _keep(
        self,
        service: Service,
        monitoring: ServiceMonitor,
        entries: list[LedgerEntry],
        decision: Decision,
        epoch: int,
    ) -> None:
        """Store the agreement's status, for the next leader and for `tidegate sla`."""
        last, doing, lacks = self._last, _doing(decision), self._shortage.told
        if entries:
            self._last = (entries[-1], doing, lacks)
        elif last is not None:
            self._last = (last[0], doing or last[1], lacks)
        if self._last is None or self._last == last:
            return
        entry, doing, lacks = self._last
        kept = StoredAgreementStatus.of(
            monitoring.agreement, entry, monitoring.ledger.history, doing, lacks
        )
        await self._store.keep_standing(decision_subject(service.spec.name), kept.to_json(), epoch)

    def _probe_doors(
        self,
        service: Service,
        agreement: Agreement,
        measured: MonitoringResult,
        now: float,
        admission: int | None,
    ) -> None:
        if measured.reading is not None:
            self._probe.path = service.spec.health_path
            self._probe.mark = probe_mark(service.secret)
            if self._disagreements.follow(measured.reading):
                self._news.disagreement(agreement.name, "", self._clock.wall())
        self._probe.addresses = self._disagreements.addresses
        for sample in self._probe.tick(now):
            self._news.probed(sample)
            said = self._disagreements.update(
                sample, now, is_silent=measured.is_silent, is_bounded=admission is not None
            )
            if said is not None:
                self._news.disagreement(agreement.name, said, self._clock.wall())


def _doing(decision: Decision) -> str:
    """Describe the actions in progress; empty if nothing needs to be done."""
    reason = decision.reason if decision.actions or decision.outcome else ""
    return "; ".join(filter(None, (reason, decision.outcome)))


def _detail(agreement: Agreement, configuration: ServiceAutoscaler) -> str:
    """Return the service's detail: reductions and current problems; empty if none."""
    reduced = agreement.resources.reduced
    return "; ".join(filter(None, (reduced and f"reduced: {reduced}", configuration.detail)))
