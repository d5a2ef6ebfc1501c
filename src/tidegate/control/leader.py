"""The control loops of a node: leader election and the order of one round.

Theory of operation
-------------------

Every node runs `ControlLoops.run`, but only the leader acts. The store decides which node leads: a
leader stays leader while it is alive, then a live node with the smallest id takes over. Each change
of leader increases the leader's epoch. Every write of the loops carries this epoch, and the store
rejects a write with an old epoch by raising `StaleEpoch`. A leader that was paused therefore cannot
interfere after it resumes.

The leader runs rounds, about ten a second. One round does this, in this order:

    1. ask the store for the epoch            another epoch: drop all remembered state
    2. read all topologies                    a queue has its own `QueueLoop`
    3. poll the nodes' stats, once            only if a queue or an agreement is due
    4. run the `QueueLoop` of each due queue  concurrently, each with its own polling interval
    5. judge the agreements of the settings   `ConfiguredAgreements`, once a second
    6. run the loops of the HTTP services     `HostingLoop`
    7. run the loop of the machines           `FleetLoop`, last: it places what 4 and 6 ordered

Failures:

- `StaleEpoch` anywhere in steps 2 to 7 ends the round. The node forgets everything and follows.
- Another `TidegateError` in one queue's loop is logged. That queue keeps its replicas until its
  next period, and the other queues are not affected.
- Another `TidegateError` outside a queue's loop, for example an unavailable store, ends the round.
  The node retries and logs only the first failure of such a series.
- Any other exception is a bug. It is logged with its traceback, and the next round starts.
- A node that does not answer the poll is not an error here. Its replicas keep their last sample,
  which grows older, and the autoscaler decides nothing on stale samples.

State in memory is only a cache of measurements. The store holds every order, so a new leader
completes what the old one began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tidegate.agreements.document import Agreement
from tidegate.control.agreement_monitor import AgreementMonitor, ConfiguredAgreements
from tidegate.control.alerts import Alerts
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.machines import FleetLoop
from tidegate.control.provisioning import Provisioner
from tidegate.control.queues.loop import QueueLoop
from tidegate.control.services.loop import HostingLoop
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.store import Clock, Store
from tidegate.core.topology import Topology
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor
from tidegate.fleet.fleet import Fleet
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

# The leader checks this often which loops are due; other nodes check this often whether they lead.
_LEADER_S = 0.1
_FOLLOWER_S = 0.5


class LeaderCandidate(Protocol):
    """A node that may lead."""

    @property
    def member_id(self) -> int:
        """The present id; a node that was declared dead rejoins with another one."""


class ControlLoops:
    """All control loops of one node."""

    def __init__(
        self,
        store: Store,
        candidate: LeaderCandidate,
        sensor: NativeSensor,
        actuator: NativeActuator,
        *,
        fleet: Fleet | None = None,
        learned: AcceptedModels | None = None,
        recorder: Recorder | None = None,
        alerts: Alerts | None = None,
        clock: Clock | None = None,
        agreements: Sequence[Agreement] = (),
    ) -> None:
        self._recorder = recorder
        self._alerts = alerts or Alerts()
        self._store = store
        self._candidate = candidate
        self._sensor = sensor
        self._actuator = actuator
        self._learned = learned or AcceptedModels(None)
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
        # Agreements of the settings. A queue's own agreement belongs to its `QueueLoop`.
        self._agreed = ConfiguredAgreements(store, agreements, self._new_keeping, self._learned)
        self._queues: dict[int, QueueLoop] = {}
        self._epoch: int | None = None
        # Whether the last round failed with a `TidegateError`.
        self._is_held = False

    @property
    def leads(self) -> bool:
        """Whether this node was the leader when it last asked the store."""
        return self._epoch is not None

    async def run(self) -> None:
        """Run rounds until cancelled; log failures and retry."""
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
        """Log the first failure only: an unavailable store fails thousands of times in an hour."""
        if not self._is_held:
            log.warning("the loops hold still: %s", failure)
        self._is_held = True

    def _went_on(self) -> None:
        if self._is_held:
            log.info("the loops go on")
        self._is_held = False

    async def run_once(self, now: float) -> None:
        """Run one round at `now` (monotonic seconds) if this node leads.

        Return after asking the store if it does not lead. Raises `TidegateError` if the store or
        another shared part fails; `StaleEpoch` is handled here.
        """
        epoch = await self._store.lead(self._candidate.member_id)
        try:
            if epoch != self._epoch:
                await self._lead_anew(epoch)
            if epoch is None:
                return
            topologies = await self._store.topologies()
            due = self._due(topologies, now)
            agreed = await self._agreed.due(topologies, now)
            self._learned.refresh(now)
            if due or agreed:
                looked_at = {one.queue_id: one for one in (*agreed, *topologies)}
                await self._sensor.poll(list(looked_at.values()), self._clock.monotonic)
            if due:
                await self._steer_all(due, self._clock.monotonic(), epoch)
            if agreed:
                await self._agreed.run_once(self._clock.monotonic(), epoch)
            # Before the machines: an instance ordered now gets its slot in the same round.
            await self._hosting_loop.run_once(now, epoch)
            if self._fleet_loop is not None:
                await self._fleet_loop.run_once(self._queues, now, epoch)
        except StaleEpoch as deposed:
            log.warning("this node leads no more: %s", deposed)
            await self._lead_anew(None)

    async def _lead_anew(self, epoch: int | None) -> None:
        """Start to lead under `epoch`, or stop if it is None, and forget all remembered state.

        The loops forget even when one epoch of this node follows another: another node may have led
        in between and changed everything they remember.
        """
        if epoch is not None:
            # The machine limit is a setting of this node. Clients of every node need it in the
            # store, so that a deploy can say how many instances fit.
            await self._store.bound_machines(self._machines_most, epoch)
        self._epoch = epoch
        self._queues.clear()
        self._hosting_loop.reset()
        self._agreed.reset()
        if self._fleet_loop is not None:
            # A new epoch of the same node also resets it: another node may have led in between.
            await self._fleet_loop.reset()
        if epoch is not None:
            log.info("this node leads", extra={"epoch": epoch})

    def _due(self, topologies: list[Topology], now: float) -> list[Topology]:
        """Return the topologies whose polling interval has passed.

        Creates a loop for each new queue and drops the loops of queues that no longer scale.
        """
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

    def _new_keeping(self, agreement: Agreement | None = None) -> AgreementMonitor:
        return AgreementMonitor(
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
