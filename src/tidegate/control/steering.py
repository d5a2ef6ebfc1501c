"""The control shell: every node runs it, and the one that leads acts.

    lead? → look at everything once → a period of each queue that is due → of the HTTP services
          → of the fleet

Who leads is settled by the store, and every order carries the leader's epoch: one that is paused,
or deposed and does not know it yet, is refused there. Whoever hears that stops at once and forgets
what it remembered. Queues are steered beside each other, and one that fails is left to its next
period. When measurements do not come, nothing is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tidegate.adapters.native.actuator import NativeActuator
from tidegate.adapters.native.sensor import NativeSensor
from tidegate.agreement.document import Agreement
from tidegate.control.agreed_queues import AgreedQueues
from tidegate.control.agreement_keeping import AgreementKeeping
from tidegate.control.alerts import Alerts
from tidegate.control.fleet_loop import FleetLoop
from tidegate.control.hosting_loop import HostingLoop
from tidegate.control.journal import Journal
from tidegate.control.learned import Learned
from tidegate.control.provisioner import Provisioner
from tidegate.control.queue_loop import QueueLoop
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.ports import Clock, Store
from tidegate.core.replication import Topology
from tidegate.fleet.fleet import Fleet
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

# A leader looks so often whether something is due, another node whether it leads now.
_LEADER_S = 0.1
_FOLLOWER_S = 0.5


class Steering:
    """All loops of one node."""

    def __init__(
        self,
        store: Store,
        member_id: Callable[[], int],
        sensor: NativeSensor,
        actuator: NativeActuator,
        *,
        fleet: Fleet | None = None,
        learned: Learned | None = None,
        recorder: Recorder | None = None,
        alerts: Alerts | None = None,
        clock: Clock | None = None,
        agreements: Sequence[Agreement] = (),
    ) -> None:
        self._recorder = recorder
        self._alerts = alerts or Alerts()
        self._store = store
        # It may change: a node that was declared dead comes back under another.
        self._member_id = member_id
        self._sensor = sensor
        self._actuator = actuator
        self._learned = learned or Learned(None)
        self._clock = clock or Clock()
        self._journal = Journal(store, recorder, self._clock.wall)
        self._machines_most = 0 if fleet is None else fleet.machines_most
        self._fleet_loop = (
            None
            if fleet is None
            else FleetLoop(store, fleet, Provisioner(), actuator, self._journal, self._learned)
        )
        self._hosting_loop = HostingLoop(
            store,
            self._journal,
            self._alerts,
            fleet_loop=self._fleet_loop,
            recorder=recorder,
            clock=self._clock,
            learned=self._learned,
        )
        # Of the settings; what a queue has of its own is its loop's.
        self._agreed = AgreedQueues(store, agreements, self._new_keeping, self._learned)
        self._queues: dict[int, QueueLoop] = {}
        self._epoch: int | None = None
        # Whether the last period failed.
        self._is_held = False

    @property
    def leads(self) -> bool:
        """Whether it did when last asked."""
        return self._epoch is not None

    async def run(self) -> None:
        """Forever; whatever fails is tried again."""
        while True:
            try:
                await self.run_once(self._clock.monotonic())
                self._went_on()
            except TidegateError as failure:
                self._held_still(failure)
            except Exception:
                log.exception("a bug in the loops")
            is_prompt = self.leads and not self._is_held
            await asyncio.sleep(_LEADER_S if is_prompt else _FOLLOWER_S)

    def _held_still(self, failure: TidegateError) -> None:
        """Said once: a store that is away for an hour fails thousands of times, in many words."""
        if not self._is_held:
            log.warning("the loops hold still: %s", failure)
        self._is_held = True

    def _went_on(self) -> None:
        if self._is_held:
            log.info("the loops go on")
        self._is_held = False

    async def run_once(self, now: float) -> None:
        """One period of whatever is due, if this node leads."""
        epoch = await self._store.lead(self._member_id())
        if epoch != self._epoch:
            await self._lead_anew(epoch)
        if epoch is None:
            return
        try:
            topologies = await self._store.topologies()
            due = self._due(topologies, now)
            agreed = await self._agreed.due(topologies, now)
            self._learned.refresh(now)
            if due or agreed:
                looked_at = {one.queue_id: one for one in (*agreed, *topologies)}
                await self._sensor.look(list(looked_at.values()), self._clock.monotonic)
            if due:
                await self._steer_all(due, self._clock.monotonic(), epoch)
            if agreed:
                await self._agreed.run_once(self._clock.monotonic(), epoch)
            # Before the fleet: what is ordered now finds its slot in this turn.
            await self._hosting_loop.run_once(now, epoch)
            if self._fleet_loop is not None:
                await self._fleet_loop.run_once(self._queues, now, epoch)
        except StaleEpoch as deposed:
            log.warning("this node leads no more: %s", deposed)
            await self._lead_anew(None)

    async def _lead_anew(self, epoch: int | None) -> None:
        """Begin to lead, or stop; what the loops remembered may be long past."""
        if epoch is not None:
            # Who deploys is to know how many machines there may be, wherever it is.
            await self._store.bound_machines(self._machines_most, epoch)
        self._epoch = epoch
        self._queues.clear()
        self._hosting_loop.stand_down()
        self._agreed.stand_down()
        if self._fleet_loop is not None:
            # Also from one epoch to another: somebody has led in between.
            await self._fleet_loop.stand_down()
        if epoch is not None:
            log.info("this node leads", extra={"epoch": epoch})

    def _due(self, topologies: list[Topology], now: float) -> list[Topology]:
        """Queues whose period is over; those that are gone are forgotten."""
        loops = self._queues
        self._queues = {
            topology.queue_id: loops.get(topology.queue_id) or self._new_loop()
            for topology in topologies
        }
        return [
            topology
            for topology in topologies
            if self._queues[topology.queue_id].is_due(topology, now)
        ]

    def _new_loop(self) -> QueueLoop:
        return QueueLoop(
            self._store,
            self._sensor,
            self._actuator,
            self._journal,
            self._learned,
            self._fleet_loop,
            self._new_keeping(),
        )

    def _new_keeping(self, agreement: Agreement | None = None) -> AgreementKeeping:
        return AgreementKeeping(
            self._store,
            self._sensor,
            self._journal,
            self._clock.wall,
            self._alerts,
            self._recorder,
            agreement,
        )

    async def _steer_all(self, due: list[Topology], now: float, epoch: int) -> None:
        results = await asyncio.gather(
            *(self._queues[one.queue_id].run_once(one, now, epoch) for one in due),
            return_exceptions=True,
        )
        for topology, result in zip(due, results, strict=True):
            if isinstance(result, StaleEpoch):
                raise result
            if isinstance(result, TidegateError):
                log.warning("queue %s is left as it is: %s", topology.queue, result)
            elif isinstance(result, BaseException):
                log.error("a bug in the loop of queue %s", topology.queue, exc_info=result)
