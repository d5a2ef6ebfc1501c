"""Agreements of the settings, judged for every queue that they govern.

    agreements of [pipeline] × queues that they govern → `AgreementMonitor` of each, once a second

A queue is judged although it may not scale; people then decide what to do about a breach. A queue
that scales by its own agreement of the same name is judged by its own loop (control/queue_loop.py)
and left out here. Learned warnings move here as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.agreement.document import Agreement, AgreementInvalid
from tidegate.agreement.scaling_terms import agreement_for
from tidegate.control.agreement_keeping import AgreementKeeping
from tidegate.control.learned import Learned
from tidegate.core.ports import Store
from tidegate.core.replication import Topology
from tidegate.core.scaling import DEFAULT_SCALING
from tidegate.core.steering import Decision

PERIOD_S = 1.0
# Seconds between two reads of the list of queues.
_LIST_S = 5.0


class AgreedQueues:
    """Judges queues by the agreements of the settings."""

    def __init__(
        self,
        store: Store,
        agreements: Sequence[Agreement],
        new_keeping: Callable[[Agreement], AgreementKeeping],
        learned: Learned,
    ) -> None:
        self._store = store
        self._agreements = [one for one in agreements if one.queue is not None]
        self._new_keeping = new_keeping
        self._learned = learned
        self._plain: list[Topology] = []
        self._listed_at = self._began_at = float("-inf")
        # By name of the agreement and id of the queue.
        self._keepings: dict[tuple[str, int], AgreementKeeping] = {}
        self._governed: list[tuple[Agreement, Topology]] = []

    async def due(self, topologies: Sequence[Topology], now: float) -> list[Topology]:
        """Return the queues to poll for this round.

        Empty if the last round was less than PERIOD_S ago, or if no agreement governs any queue.
        """
        if not self._agreements or now - self._began_at < PERIOD_S:
            return []
        self._began_at = now
        if now - self._listed_at >= _LIST_S:
            self._plain = await self._plain_queues()
            self._listed_at = now
        self._governed = [
            (agreement, topology)
            for topology in (*topologies, *self._plain)
            for agreement in self._agreements
            if agreement.governs_queue(topology.queue) and not _has_own(topology, agreement)
        ]
        return [topology for _, topology in self._governed]

    async def run_once(self, now: float, epoch: int) -> None:
        """Judge the queues that `due` returned and that were polled since."""
        known = self._keepings
        self._keepings = {}
        for agreement, topology in self._governed:
            key = (agreement.name, topology.queue_id)
            keeping = self._keepings[key] = known.get(key) or self._new_keeping(agreement)
            await keeping.measure(topology, now)
            if keeping.agreement is not None:
                lake = self._learned.warnings(agreement.name)
                keeping.agreement.learn_warnings(topology.scaling.boot_s, lake)
            decision = Decision(
                at=now, loop="agreement", service=topology.queue, law="agreement", rule="judged"
            )
            await keeping.account(topology, decision, epoch)

    def stand_down(self) -> None:
        """Forget everything, because this node no longer leads."""
        self._listed_at = self._began_at = float("-inf")
        self._keepings.clear()

    async def _plain_queues(self) -> list[Topology]:
        """Return queues that do not scale, each as a topology without replicas."""
        return [
            Topology(one.queue_id, one.name, 0, DEFAULT_SCALING)
            for one in await self._store.list_queues()
            if not one.elastic and not one.alias_id
        ]


def _has_own(topology: Topology, agreement: Agreement) -> bool:
    """Return whether the queue's own loop judges it by an agreement of this name."""
    text = topology.scaling.agreement
    if text is None:
        return False
    try:
        return agreement_for(text, topology.queue).name == agreement.name
    except AgreementInvalid:
        return False
