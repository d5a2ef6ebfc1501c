"""The agreement of one queue while its loop runs: measured, judged, accounted for, kept.

    measure   meter → QueueAgreement: windows that are over, with their events; responses are put
              together from waits and services (control/queue_responses.py)
    before    the pledge and a capacity to begin with, for the law; what can be done inside
    after     every event to the journal and the lake, a breach to whoever is to be alerted, and
              where the agreement stands to the store: the next leader goes on from there

Under any other policy all of it happens too, and the law is not told.
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
    """Holds one queue to its agreement while this node leads."""

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
        # What somebody promises of a queue that has no agreement of its own.
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
        # What the store knows: the last window, what is being done, and what is lacking.
        self._kept: tuple[Entry | None, str, str] | None = None
        # What was said inside since the agreement is in danger; None: it is not, or not yet.
        self._inside: Inside | None = None
        # Why the queue's agreement is not kept; "": it is, or there is none.
        self.trouble = ""
        # None: the queue has none, or one that cannot be read.
        self.agreement: QueueAgreement | None = None

    async def measure(self, topology: Topology, now: float) -> None:
        """Look at what came since the last time; the windows that are over wait for `account`."""
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
        """The agreement that the queue has now; another one begins with what was kept of it."""
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
        """How long the last replica that was ordered took to serve, for warnings and history."""
        if self.agreement is None:
            return
        is_new = self.agreement.reconfigured(lead_s)
        if is_new and lead_s is not None and self._news is not None:
            self._news.reconfigured(self._wall(), lead_s, "added a replica")

    async def inside(self, topology: Topology, sample: QueueSample) -> Inside | None:
        """What can be done inside about a danger; None: there is none, or it was done."""
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
        """Tell of what turned, and keep where the agreement stands.

        `unplaced` is why replicas that were ordered have no place; "": they have, or will.
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
        """What is being done about it, in words; "": nothing need be."""
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
        """Why there are fewer replicas than are needed; "": there are enough, None: who knows."""
        is_ours = topology.scaling.policy is ScalingPolicy.AGREEMENT and self._given is None
        if not is_ours or "wanted" not in decision.outputs:
            return None
        return unplaced or _too_many(topology, agreement, decision)


def _too_many(topology: Topology, agreement: QueueAgreement, decision: Decision) -> str:
    """That more are needed than there may be; "": they are not."""
    most = obeying(topology.scaling, agreement.said).replicas.max
    # Not how many: who is short of them changes that number with every look.
    if decision.outputs.get("wanted", 0.0) <= most:
        return ""
    return f"more replicas are needed than {most}, the most that there may be"


def _nothing(rule: str) -> str:
    """That nothing is being done, and why."""
    words = in_words(rule)
    return words if words.startswith("nothing") else f"nothing: {words}"
