"""The agreement of one queue while its loop runs: measure, judge, report, keep.

Theory of operation
-------------------

An `AgreementMonitor` belongs to one queue. The queue's loop calls it at these points of a period:

    measure   the sensor's counters become an agreement sample; windows that it closes are judged.
              Response times are put together from waits and service times (queue_responses.py)
    (decide)  the loop reads the wait target and the learned warnings from `agreement`
    inside    at a warning: what the prefetch can do before the number of replicas changes
    account   closed windows go to journal, lake and alerts; the agreement's status is stored

All of it happens under every policy, but only the policy "agreement" uses the wait target.

The agreement is either the queue's own, read again when its text changes, or one of the settings.
An agreement that cannot be read is treated as none, and `trouble` says why. The stored status lets
the next leader continue with the same error budget and the same open violations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.adapters.native.promise_meter import PromiseMeter
from tidegate.adapters.native.sensor import NativeSensor
from tidegate.agreement.document import Agreement, AgreementInvalid
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.agreement.ledger import Entry
from tidegate.agreement.scaling_terms import agreement_for, obeying
from tidegate.control.agreement_news import AgreementNews, Governed
from tidegate.control.alerts import Alerts
from tidegate.control.journal import Journal
from tidegate.control.queue_agreement import QueueAgreement
from tidegate.control.queue_inside import Inside, adapted_inside
from tidegate.control.queue_responses import QueueResponses
from tidegate.control.shortage import Shortage
from tidegate.core.ports import Store
from tidegate.core.replication import Topology
from tidegate.core.rule_words import in_words
from tidegate.core.scaling import ScalingPolicy
from tidegate.core.steering import WITHIN, Decision, QueueSample
from tidegate.core.steering_words import counted, sentence
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)


class AgreementKeeping:
    """Measures and judges one queue by its agreement while this node leads."""

    def __init__(
        self,
        store: Store,
        sensor: NativeSensor,
        journal: Journal,
        wall: Callable[[], float],
        alerts: Alerts,
        recorder: Recorder | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        # An agreement of the settings; None if the queue's own agreement counts.
        self._given = agreement
        self._store = store
        self._sensor = sensor
        self._meter = PromiseMeter(sensor)
        self._journal = journal
        self._wall = wall
        self._recorder = recorder
        self._alerts = alerts
        self._news: AgreementNews | None = None
        self._shortage = Shortage()
        self._responses = QueueResponses()
        self._text: str | None = None
        self._entries: list[Entry] = []
        # The stored status: the last window, the text of the remedy, and the text of the shortage.
        self._kept: tuple[Entry | None, str, str] | None = None
        # The prefetch advice given since the current danger began; None before that.
        self._inside: Inside | None = None
        # Why the queue's agreement is not used; empty if it is used, or if there is none.
        self.trouble = ""
        # None if the queue has no agreement, or an unreadable one.
        self.agreement: QueueAgreement | None = None

    async def measure(self, topology: Topology, now: float) -> None:
        """Measure the time since the last call; closed windows wait for `account`."""
        await self._follow(topology)
        if self.agreement is None:
            return
        sample = self._meter.sample(topology, now, self._wall())
        if sample is None:
            return
        if any(one.stem == "response" for one in self.agreement.said.metrics):
            sample = self._responses.complete(sample)
        self._entries += self.agreement.take(sample)

    async def _follow(self, topology: Topology) -> None:
        """Load the queue's agreement if it is new or has changed, with its stored status."""
        if self._given is not None:
            if self.agreement is None:
                await self._begin(self._given, topology.queue)
            return
        text = topology.scaling.agreement
        if text == self._text:
            return
        self._text, self.agreement, self._entries, self._inside = text, None, [], None
        self.trouble = ""
        if text is None:
            return
        try:
            agreement = agreement_for(text, topology.queue)
        except AgreementInvalid as wrong:
            log.error("the agreement of queue %s cannot be read: %s", topology.queue, wrong)
            self.trouble = f"Its agreement cannot be read: {wrong}."
            return
        try:
            await self._begin(agreement, topology.queue)
        except BaseException:
            self._text = None
            raise

    async def _begin(self, agreement: Agreement, queue: str) -> None:
        found = QueueAgreement(agreement, queue)
        document = (await self._store.standings()).get(found.key)
        kept = None if document is None else KeptStanding.from_json(document)
        self.agreement = QueueAgreement(agreement, queue, kept)
        about = Governed.queue(queue)
        self._news = AgreementNews(about, self._journal, self._alerts, self._recorder)
        self._news.go_on(agreement, kept)
        self._shortage = Shortage("" if kept is None else kept.lacks)

    def reconfigured(self, lead_s: float | None) -> None:
        """Record how long the last ordered replica took to serve, for warnings and history."""
        if self.agreement is None:
            return
        is_new = self.agreement.reconfigured(lead_s)
        if is_new and lead_s is not None and self._news is not None:
            self._news.reconfigured(self._wall(), lead_s, "added a replica")

    async def inside(self, topology: Topology, sample: QueueSample) -> Inside | None:
        """Return what the prefetch can do about a danger; None without one, or if done."""
        if self.agreement is None or not self.agreement.is_endangered:
            self._inside = None
            return None
        if self._inside is not None:
            return None
        queue = await self._store.find_queue(topology.queue_id, None)
        if queue is None:
            return None
        numbers = (self._sensor.numbers_of(place.queue_id) for place in topology.replicas)
        consumers = [one for each in numbers if each is not None for one in each.consumers]
        waiting = sample.alias_waiting + sum(one.waiting for one in sample.replicas)
        self._inside = adapted_inside(queue.policy.prefetch, consumers, waiting)
        return self._inside

    async def account(
        self, topology: Topology, decision: Decision, epoch: int, unplaced: str = ""
    ) -> None:
        """Report closed windows and shortages, and store the agreement's status.

        `unplaced` is why ordered replicas have no slot; empty if they have one or will get one.
        """
        agreement, news = self.agreement, self._news
        if agreement is None or news is None:
            return
        entries, self._entries = self._entries, []
        for entry in entries:
            news.window(agreement.said, entry)
        lacks = self._lacks(topology, agreement, decision, unplaced)
        lacking = None if lacks is None else self._shortage.take(lacks, decision.at)
        if lacking is not None:
            news.shortage(agreement.said.name, lacking, self._wall())
        doing = self._doing_of(topology, decision)
        await news.write(doing, epoch)
        stands = (agreement.last, doing, self._shortage.told)
        standing = agreement.standing(doing, self._shortage.told)
        if standing is not None and stands != self._kept:
            await self._store.keep_standing(agreement.key, standing.to_json(), epoch)
            self._kept = stands

    def _doing_of(self, topology: Topology, decision: Decision) -> str:
        """Describe the actions in progress; empty if nothing needs to be done."""
        if not topology.replicas and self._given is not None:
            return "monitored only: it does not scale"
        if topology.scaling.policy is not ScalingPolicy.AGREEMENT or self._given is not None:
            return f"monitored only: policy {topology.scaling.policy}"
        words = [sentence(one) for one in decision.actions if not isinstance(one, WITHIN)]
        coming = decision.inputs.get("coming", 0.0)
        if not words and coming:
            words = [f"{counted(int(coming), 'replica')} on the way"]
        if not words and self.agreement is not None and self.agreement.is_endangered:
            words = [_too_many(topology, self.agreement, decision) or _nothing(decision.rule)]
        return ", ".join(words)

    def _lacks(
        self, topology: Topology, agreement: QueueAgreement, decision: Decision, unplaced: str
    ) -> str | None:
        """Return why too few replicas are possible; empty if there are enough, None if unknown."""
        is_ours = topology.scaling.policy is ScalingPolicy.AGREEMENT and self._given is None
        if not is_ours or "wanted" not in decision.outputs:
            return None
        return unplaced or _too_many(topology, agreement, decision)


def _too_many(topology: Topology, agreement: QueueAgreement, decision: Decision) -> str:
    """Return that more replicas are needed than allowed; empty if they are not."""
    most = obeying(topology.scaling, agreement.said).replicas.max
    # Leave the needed number out: it changes with every sample, and each text would be news.
    if decision.outputs.get("wanted", 0.0) <= most:
        return ""
    return f"more replicas are needed than {most}, the most that there may be"


def _nothing(rule: str) -> str:
    """Return that nothing is being done, with the reason."""
    words = in_words(rule)
    return words if words.startswith("nothing") else f"nothing: {words}"
