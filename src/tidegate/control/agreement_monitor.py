"""The agreement of one queue while its loop runs: measure, judge, report, keep.

Theory of operation
-------------------

An `AgreementMonitor` belongs to one queue. The queue's loop calls it at these points of a period:

    measure   the sensor's counters become an agreement sample; windows that it closes are judged.
              Response times are put together from waits and service times (agreement_monitor.py)
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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidegate.agreements.document import (
    Agreement,
    AgreementInvalid,
    agreement_for,
    with_agreed_scaling,
)
from tidegate.agreements.evaluation import AgreementSample, Durations
from tidegate.agreements.ledger import LedgerEntry, StoredAgreementStatus
from tidegate.control.alerts import AgreementAlerts, AgreementSubject, Alerts, CapacityShortage
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.queues.agreement import QueueAgreement
from tidegate.core.decisions import (
    NON_SCALING_ACTIONS,
    Decision,
    KeepUp,
    QueueSample,
    format_action,
    format_count,
    format_rule,
)
from tidegate.core.prefetch import PrefetchGoal, format_goal
from tidegate.core.store import Store
from tidegate.core.topology import DEFAULT_SCALING, ScalingPolicy, Topology
from tidegate.engines.native.sensor import AgreementMeter, NativeSensor, SensorConsumerStats
from tidegate.telemetry.meters import bucket_of, upper_bound_s
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)


class AgreementMonitor:
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
        self._meter = AgreementMeter(sensor)
        self._journal = journal
        self._wall = wall
        self._recorder = recorder
        self._alerts = alerts
        self._news: AgreementAlerts | None = None
        self._shortage = CapacityShortage()
        self._responses = QueueResponses()
        self._text: str | None = None
        self._entries: list[LedgerEntry] = []
        # The stored status: the last window, the text of the remedy, and the text of the shortage.
        self._kept: tuple[LedgerEntry | None, str, str] | None = None
        # The prefetch advice given since the current danger began; None before that.
        self._inside: PrefetchBoost | None = None
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
        self._entries += self.agreement.add_sample(sample)

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
        kept = None if document is None else StoredAgreementStatus.from_json(document)
        self.agreement = QueueAgreement(agreement, queue, kept)
        about = AgreementSubject.queue(queue)
        self._news = AgreementAlerts(about, self._journal, self._alerts, self._recorder)
        self._news.resume(agreement, kept)
        self._shortage = CapacityShortage("" if kept is None else kept.lacks)

    def reconfigured(self, lead_s: float | None) -> None:
        """Record how long the last ordered replica took to serve, for warnings and history."""
        if self.agreement is None:
            return
        is_new = self.agreement.reconfigured(lead_s)
        if is_new and lead_s is not None and self._news is not None:
            self._news.reconfigured(self._wall(), lead_s, "added a replica")

    async def inside(self, topology: Topology, sample: QueueSample) -> PrefetchBoost | None:
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
        self._inside = prefetch_boost(queue.policy.prefetch, consumers, waiting)
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
        lacking = None if lacks is None else self._shortage.update(lacks, decision.at)
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
        words = [
            format_action(one)
            for one in decision.actions
            if not isinstance(one, NON_SCALING_ACTIONS)
        ]
        coming = decision.inputs.get("coming", 0.0)
        if not words and coming:
            words = [f"{format_count(int(coming), 'replica')} on the way"]
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
    most = with_agreed_scaling(topology.scaling, agreement.said).replicas.max
    # Leave the needed number out: it changes with every sample, and each text would be news.
    if decision.outputs.get("wanted", 0.0) <= most:
        return ""
    return f"more replicas are needed than {most}, the most that there may be"


def _nothing(rule: str) -> str:
    """Return that nothing is being done, with the reason."""
    words = format_rule(rule)
    return words if words.startswith("nothing") else f"nothing: {words}"


# Agreements of the settings, judged for every queue that they govern.
#
#     agreements of [pipeline] × queues that they govern → `AgreementMonitor` of each, once a second
#
# A queue is judged although it may not scale; people then decide what to do about a breach. A queue
# that scales by its own agreement of the same name is judged by its own loop
# (control/queues/loop.py) and left out here. Learned warnings move here as they do there.


PERIOD_S = 1.0
# Seconds between two reads of the list of queues.
_LIST_S = 5.0


class ConfiguredAgreements:
    """Judges queues by the agreements of the settings."""

    def __init__(
        self,
        store: Store,
        agreements: Sequence[Agreement],
        new_keeping: Callable[[Agreement], AgreementMonitor],
        learned: AcceptedModels,
    ) -> None:
        self._store = store
        self._agreements = [one for one in agreements if one.queue is not None]
        self._new_keeping = new_keeping
        self._learned = learned
        self._plain: list[Topology] = []
        self._listed_at = self._began_at = float("-inf")
        # By name of the agreement and id of the queue.
        self._keepings: dict[tuple[str, int], AgreementMonitor] = {}
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

    def reset(self) -> None:
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


# Response times of messages, put together from waits and service times.
#
#     P(response = w + s) = P(wait = w) · P(service = s)        assuming that they are independent
#
# Nodes count waits and service times in two histograms and do not remember the wait of a message
# after its delivery, to save memory. The recorded lifecycles of single messages give exact response
# times later; `tidegate learn` judges by them.


# The sum of two durations, each the upper bound of its bucket, is too large by this factor on
# average.
_HALF_A_BUCKET = 2.0 ** (1.0 / 16.0)


class QueueResponses:
    """Response times of one queue."""

    def __init__(self) -> None:
        # Waits of the last interval in which a message was delivered.
        self._waits: Durations = ()

    def complete(self, sample: AgreementSample) -> AgreementSample:
        """Return the sample with the response times of the messages acknowledged in it."""
        self._waits = sample.times.get("wait") or self._waits
        services = sample.times.get("service", ())
        return replace(
            sample, times={**sample.times, "response": sum_responses(self._waits, services)}
        )


def sum_responses(waits: Durations, services: Durations) -> Durations:
    """Return as many response times as there are service times; empty without waits or services."""
    waited = sum(count for _, count in waits)
    if not waited:
        return ()
    counts: defaultdict[int, float] = defaultdict(float)
    for service_s, count in services:
        for wait_s, of_waits in waits:
            bucket = bucket_of((wait_s + service_s) / _HALF_A_BUCKET)
            counts[bucket] += count * of_waits / waited
    return [(upper_bound_s(bucket), count) for bucket, count in sorted(counts.items())]


# Prefetch advice: at a warning, adapt the consumers' prefetch before adding replicas.
#
#     no goal, consumers are full, messages wait      set a goal: keep up with the handlers
#     the prefetch keeps up already                   nothing is left to adapt
#     an override sets a rate or a number             it stays, and the text says so
#     no consumers, or consumers with unused credit   the prefetch is not the bottleneck
#
# In any case the law may order replicas in the same period: it looks further ahead than a window
# does.


class PrefetchBoost(NamedTuple):
    """An action on the prefetch, if any, and a sentence about it."""

    action: KeepUp | None
    said: str


def prefetch_boost(
    goal: PrefetchGoal | None, consumers: Sequence[SensorConsumerStats], waiting: int
) -> PrefetchBoost:
    """Return what the prefetch can do about a warning; the action is None if it can do nothing."""
    if not consumers:
        return PrefetchBoost(None, "Nothing can be adapted inside: nobody consumes.")
    if goal is not None:
        if goal.manual is None and goal.rate_per_s is None:
            return PrefetchBoost(
                None, "Nothing is left to adapt inside: the prefetch keeps up already."
            )
        return PrefetchBoost(
            None, f"Nothing is adapted inside: a person has set the prefetch ({format_goal(goal)})."
        )
    full = sum(one.unacknowledged >= one.prefetch for one in consumers)
    if not waiting or not full:
        return PrefetchBoost(
            None, "Nothing can be adapted inside: consumers have credit for more than they get."
        )
    return PrefetchBoost(
        KeepUp(),
        f"Inside first: {full} of {len(consumers)} consumers have all that their prefetch allows "
        f"while {waiting} messages wait, so it is steered to keep up with their handlers.",
    )
