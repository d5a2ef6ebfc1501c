"""The autoscaler of one logical queue: one sample in, one explained decision out.

Theory of operation
-------------------

An `Autoscaler` belongs to one logical queue. Its loop calls `decide` once per period with a
`QueueSample`, and executes the actions of the `Decision` that it returns. The autoscaler does no
I/O, reads no clock (the time is `sample.at`) and raises nothing on bad measurements. The simulation
therefore runs the same code in virtual time.

A decision is made in these steps:

    check        a stale, missing or impossible measurement holds everything: no actions
    learn        the history and the replicas' capacities are updated from the sample
    propose      the policy's law proposes a number of replicas: `load`, `clients`, `feed-forward`,
                 `length`, `agreement` or `fixed`; in manual mode the override is the proposal
    guard        `apply_guards` limits the proposal: last replica, reversal, max, min,
                 consumers, unreachable replicas, cool-down
    add, remove  to add: cancel drains first, then order replicas
                 to remove: cancel orders first, then drain; one removal at a time
    retire       a draining replica without share, messages and clients ends
    transfer     waiting messages move from replicas with too many to the others
    share        the parts of new messages: an override, else flow control
    migrate      connected consumers and, for `clients`, producers change their replica

Invariants:

- The sample is the truth, not the autoscaler's earlier orders. An order that was rejected, or only
  recommended, has not happened, and the next period decides again from the measurements.
- A removal begins only while no replica drains. A removal that has become unnecessary is cancelled
  before any replica is added, because a draining replica serves sooner than a new one.
- Flow control does not correct queue lengths in a period that transfers messages. Otherwise both
  would correct the same surplus.
- After a migration no client moves for MIGRATION_PERIODS, until samples show its effect.
- A law is replaced only when a setting that it was made from changes; its memory stays otherwise.

In recommend mode the decision contains the same actions with `carried_out=False`. The loop then
executes only actions that do not change the number of replicas.

State is in memory only: the capacities, the history, the reversal guard and the law's own memory.
After a change of leader a new autoscaler learns them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidegate.control.queues.guards import apply_guards, client_proposal, migrations, retirements
from tidegate.core.decisions import (
    Action,
    AddReplica,
    CancelDrain,
    CancelPending,
    Decision,
    Drain,
    QueueSample,
    ReplicaSample,
    SetShares,
)
from tidegate.core.topology import ControlMode, ReplicaState, Scaling, ScalingPolicy
from tidegate.laws.placement import removal_order
from tidegate.laws.routing import (
    DEFAULT_SHARE_SETTINGS,
    DEFAULT_TRANSFER_SETTINGS,
    ShareSettings,
    TransferSettings,
    exchanges,
    manual_shares,
    next_shares,
    shares_differ,
)
from tidegate.laws.scaling import Proposal, QueueSituation, ReversalGuard, ReversalSettings
from tidegate.laws.scaling.feed_forward import FeedForwardLaw, FeedForwardSettings
from tidegate.laws.scaling.load import (
    DEFAULT_LOAD_LAW_SETTINGS,
    LengthLaw,
    LoadLaw,
    LoadLawSettings,
)
from tidegate.laws.scaling.wait import DEFAULT_WAIT_LAW_SETTINGS, WaitLaw, WaitTarget

# Periods after a migration in which no client moves, so that samples can show its effect.
MIGRATION_PERIODS = 5.0
# Part of the inhibition time after which a new replica is assumed to work at full speed.
SETTLE_PART = 0.4


class Autoscaler:
    """Decides for one logical queue.

    `scaling` may be set at any time. What was learned stays; a law or a guard is rebuilt only if
    its own settings changed.
    """

    def __init__(
        self,
        scaling: Scaling,
        *,
        elasticity: LoadLawSettings = DEFAULT_LOAD_LAW_SETTINGS,
        feed_forward: FeedForwardSettings | None = None,
        flow: ShareSettings = DEFAULT_SHARE_SETTINGS,
        worth: TransferSettings = DEFAULT_TRANSFER_SETTINGS,
    ) -> None:
        self._elasticity = elasticity
        self._feed_forward = feed_forward
        self._flow = flow
        self._worth = worth
        self._capacities = ReplicaCapacities()
        self._history = ScalingHistory()
        self._migrated_at = -math.inf
        self._scaling = scaling
        self._guard = ReversalGuard(_caution(scaling))
        self._law = self._law_for(scaling)

    @property
    def scaling(self) -> Scaling:
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling) -> None:
        before, self._scaling = self._scaling, scaling
        if _caution(before) != _caution(scaling):
            self._guard = ReversalGuard(_caution(scaling))
        if _law_key(before) != _law_key(scaling):
            self._law = self._law_for(scaling)

    @property
    def lead_s(self) -> float | None:
        """Seconds from the last order of a replica until it served; None if none has been seen."""
        return self._history.lead_s

    @property
    def has_seen_capacity(self) -> bool:
        """Whether the capacity of any replica has been measured."""
        return bool(self._capacities.per_s)

    def decide(
        self,
        sample: QueueSample,
        pledge: WaitTarget | None = None,
        capacity_guess_per_s: float | None = None,
    ) -> Decision:
        """Return the decision for this sample, with the sentences that explain it.

        `pledge` is the target of the agreement; only the policy "agreement" needs it, and holds
        without it. `capacity_guess_per_s` is used until the capacity of a replica has been
        measured; None means that nothing is known.
        """
        scaling = self._scaling
        held = unusable_reason(sample, scaling)
        if held is None and scaling.policy is ScalingPolicy.AGREEMENT:
            if isinstance(self._law, WaitLaw) and pledge is not None:
                self._law.target = pledge
            elif pledge is None:
                held = "held: no agreement", "There is no agreement that can be read."
        if held is not None:
            return self._held(sample, *held)
        reading = SampleTotals(sample)
        period_s = self._history.update(reading, scaling)
        self._capacities.learn(reading, period_s)
        verdict = self._guard.observe(
            sample.at,
            len(reading.serving),
            reading.consumed_per_s,
            sample.arrived_per_s,
            reading.waiting,
        )
        seen_per_s = self._capacities.typical(reading)
        leaving = self._leaving(reading)
        now = self._history.situation(
            reading,
            scaling,
            capacity_guess_per_s if seen_per_s is None else seen_per_s,
            self._capacities.of_fewer(reversed(leaving)),
        )
        law, wish = self._wish(now, reading)
        harm = verdict or self._guard.ceiling(sample.at)
        wanted, rule, reason, otherwise = apply_guards(
            scaling, now, reading, wish, harm, self._history.changed_at, self._history.busy_at
        )
        actions = self._manoeuvre(reading, wanted, leaving)
        if actions is None:
            actions, rule = [], "held: one removal at a time"
            reason += " Another replica is still going; one at a time."
        actions += retirements(scaling, reading)
        moves = exchanges(
            sample.replicas,
            sample.alias_waiting,
            {one.number: one.share for one in reading.serving},
            period_s,
            self._worth,
        )
        shares = next_shares(
            sample.replicas,
            period_s,
            self._known_capacities(reading),
            correct_lengths=not moves,
            flow=self._flow,
            periods=self._history.periods,
        )
        said = None if scaling.shares is None else manual_shares(sample.replicas, scaling.shares)
        before = {one.number: one.share for one in sample.replicas}
        if said is not None:
            if any(abs(part - before[number]) >= 1e-3 for number, part in said.items()):
                actions.append(SetShares(said))
        elif shares and shares_differ(before, shares, self._flow):
            actions.append(SetShares(shares))
        actions += moves
        if sample.at - self._migrated_at >= MIGRATION_PERIODS * scaling.polling_interval_s:
            going_over = migrations(scaling, reading)
            if going_over:
                self._migrated_at = sample.at
            actions += going_over
        recommended = scaling.steering is ControlMode.RECOMMEND
        return Decision(
            at=sample.at,
            loop="queue",
            service=sample.queue,
            law=law,
            rule=rule,
            inputs=_inputs(now, reading, self._law),
            outputs={"wanted": float(max(wish.replicas, 0)), "replicas": float(wanted)},
            actions=list(actions),
            reason=reason,
            otherwise=otherwise,
            carried_out=not recommended,
            outcome="recommend-only: replicas are not changed" if recommended else "",
        )

    def not_migrated(self) -> None:
        """Allow a migration in the next period, because the last one was not executed."""
        self._migrated_at = -math.inf

    # The law

    def _law_for(self, scaling: Scaling) -> LoadLaw | FeedForwardLaw | LengthLaw | WaitLaw | None:
        match scaling.policy:
            case ScalingPolicy.AGREEMENT:
                # `decide` sets the target before each step: it can change with every sample.
                setting = replace(DEFAULT_WAIT_LAW_SETTINGS, down_s=scaling.cooldown_period_s)
                return WaitLaw(WaitTarget(), setting)
            case ScalingPolicy.LOAD:
                return LoadLaw(replace(self._elasticity, step_max=scaling.replicas_per_step))
            case ScalingPolicy.FEED_FORWARD:
                return FeedForwardLaw(self._feed_forward)
            case ScalingPolicy.LENGTH:
                return LengthLaw(
                    scaling.queue_length,
                    polling_s=scaling.polling_interval_s,
                    stabilisation_s=scaling.cooldown_period_s,
                )
            case _:
                return None

    def _wish(self, now: QueueSituation, reading: SampleTotals) -> tuple[str, Proposal]:
        scaling = self._scaling
        if scaling.steering is ControlMode.MANUAL:
            wanted = scaling.replicas_wanted
            if wanted is None:
                wanted = now.replicas
            # Step the law although its proposal is not used, so that its filters are current when
            # manual mode ends.
            if self._law is not None:
                self._law.step(now)
            return "manual", Proposal(
                wanted,
                "manual",
                f"A person has said {_counted(wanted)}.",
                'Steering "auto" would let the policy speak.',
            )
        if self._law is not None:
            return scaling.policy.value, self._law.step(now)
        if scaling.policy is ScalingPolicy.CLIENTS:
            return "clients", client_proposal(scaling, now, reading)
        return "fixed", Proposal(
            scaling.replicas.min,
            "fixed",
            f"The policy is fixed: {_counted(scaling.replicas.min)}.",
            "Another policy or another `replicas.min`.",
        )

    def _manoeuvre(
        self, reading: SampleTotals, wanted: int, leaving: list[int]
    ) -> list[Action] | None:
        """Return the actions towards `wanted` replicas; None while another removal is running."""
        step = max(self._scaling.replicas_per_step, 1)
        more = wanted - reading.replicas
        if more > 0:
            # A draining replica with the largest share left needs the least time to be back at
            # work.
            back = sorted(reading.draining, key=lambda one: (-one.share, -one.number))[:more]
            actions: list[Action] = [CancelDrain(one.number) for one in back]
            if more > len(back) and len(back) < step:
                actions.append(AddReplica(min(more - len(back), step - len(back))))
            return actions
        if more < 0:
            unplaced = min(-more, reading.sample.pending)
            if unplaced:
                return [CancelPending(unplaced)]
            if reading.draining:
                return None
            return [Drain(number) for number in leaving[: min(-more, step)]]
        return []

    def _leaving(self, reading: SampleTotals) -> list[int]:
        """Return the replicas in the order of removal.

        The law's estimate for fewer replicas and the drain use the same order. Otherwise a removal
        would be decided for one replica and executed on another.
        """
        here = reading.serving + reading.starting
        slow = self._capacities.slow(reading)
        return removal_order(here, self._scaling.provisioning, len(here), slow)

    def _known_capacities(self, reading: SampleTotals) -> dict[int, float]:
        stated = self._scaling.capacity_per_s
        if stated is None:
            return dict(self._capacities.per_s)
        # A measured capacity is better than the setting, which is one value for all replicas.
        known = dict.fromkeys((one.number for one in reading.serving), stated)
        known.update(self._capacities.per_s)
        return known

    def _held(self, sample: QueueSample, rule: str, why: str) -> Decision:
        return Decision(
            at=sample.at,
            loop="queue",
            service=sample.queue,
            law=self._scaling.policy.value,
            rule=rule,
            inputs={
                name: figure
                for name, figure in (
                    ("age_s", sample.age_s),
                    ("replicas", float(len(sample.replicas))),
                )
                if math.isfinite(figure)
            },
            reason=f"{why} Nothing is changed on such input.",
            otherwise="With fresh and complete measurements the policy would have spoken.",
        )


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _caution(scaling: Scaling) -> ReversalSettings:
    # Judge a scale-up before the inhibition ends: the next scale-up would hide its effect.
    return ReversalSettings(
        settle_s=SETTLE_PART * scaling.inhibition_s, remembered_s=scaling.reversal_memory_s
    )


def _law_key(scaling: Scaling) -> tuple[object, ...]:
    """Return the settings that a law is made from; when they change, its memory is invalid."""
    words: tuple[object, ...] = (scaling.policy,)
    if scaling.policy is ScalingPolicy.LOAD:
        words += (scaling.replicas_per_step,)
    if scaling.policy is ScalingPolicy.AGREEMENT:
        words += (scaling.cooldown_period_s,)
    if scaling.policy is ScalingPolicy.LENGTH:
        words += (scaling.queue_length, scaling.polling_interval_s, scaling.cooldown_period_s)
    return words


def _inputs(now: QueueSituation, reading: SampleTotals, law: object) -> dict[str, float]:
    figures = {
        "serving": float(now.serving),
        "coming": float(now.coming),
        "draining": float(now.draining),
        "waiting": float(now.waiting),
        "avg_load": now.average_load,
        "min_load": now.min_load,
        "max_load": now.max_load,
        "arrived_per_s": reading.sample.arrived_per_s,
        "consumed_per_s": now.consumed_per_s,
        "oldest_age_s": now.oldest_age_s,
        "resource_load": reading.sample.resource_load,
    }
    if isinstance(law, WaitLaw):
        # The policy "agreement" does not use loads.
        del figures["min_load"], figures["max_load"]
        if law.target.wait_s is not None:
            figures["wait_warns_at_s"] = law.target.wait_s
    # An unknown input is left out instead of being shown as 0.
    if now.capacity_per_s is not None:
        figures["capacity_per_s"] = now.capacity_per_s
    return figures


# What the autoscaler remembers between samples, and the situation it gives to the laws.
#
# Only samples count, not orders. A scale-up has happened when a sample shows more replicas than the
# sample before, no matter which program ordered them. The inhibition time starts again when a new
# replica begins to serve, because it affects the queue only from then on.


# Assumed seconds from a slot to serving, until a start has been measured.
START_S = 5.0
# Time constant, in seconds, of the average arrival rate that the laws use.
ARRIVAL_S = 10.0
# In polling intervals. After a longer gap the loop was delayed, and the gap is not used as the
# length of a period.
PERIOD_MAX = 10.0
# More of them than this are as good as for ever.
PERIODS_MAX = 1000.0


class ScalingHistory:
    """When the number of replicas changed, and the average arrival rate."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._arrived_per_s = 0.0
        # From the last sample: replicas that are to stay, and replicas that serve.
        self._count = 0
        self._serving = 0
        self._up_at = -math.inf
        self._ordered_at: float | None = None
        # Seconds from the last order of a replica until it served; None until one was seen.
        self.lead_s: float | None = None
        # The number of periods since the last sample. It is above 1 when a sample was late.
        self.periods = 1
        # When the number of replicas that are to stay last changed.
        self.changed_at = -math.inf
        # When the queue last had anything to do.
        self.busy_at = -math.inf

    def update(self, reading: SampleTotals, scaling: Scaling) -> float:
        """Record the changes since the last sample; return the length of the period in seconds.

        After an implausible gap (0 or less, or above PERIOD_MAX intervals) the polling interval is
        returned instead.
        """
        sample = reading.sample
        usual_s = scaling.polling_interval_s
        count, serving = reading.replicas, len(reading.serving)
        if reading.is_busy:
            self.busy_at = sample.at
        if self._at is None:
            self._arrived_per_s = sample.arrived_per_s
            passed_s = usual_s
        else:
            passed_s = sample.at - self._at
            if usual_s > 0.0:
                self.periods = round(min(max(passed_s / usual_s, 1.0), PERIODS_MAX))
            if not 0.0 < passed_s <= PERIOD_MAX * usual_s:
                passed_s = usual_s
            new = 1.0 - math.exp(-passed_s / ARRIVAL_S)
            self._arrived_per_s += new * (sample.arrived_per_s - self._arrived_per_s)
            self._note(sample.at, count, serving)
        self._at, self._count, self._serving = sample.at, count, serving
        return passed_s

    def _note(self, at: float, count: int, serving: int) -> None:
        if count > self._count:
            self._up_at = self.changed_at = self._ordered_at = at
        elif count < self._count:
            self.changed_at = at
        if serving > self._serving:
            self._up_at = at
            if self._ordered_at is not None:
                self.lead_s = at - self._ordered_at
                self._ordered_at = None

    def situation(
        self,
        reading: SampleTotals,
        scaling: Scaling,
        capacity_per_s: float | None,
        of_fewer_per_s: tuple[float, ...] = (),
    ) -> QueueSituation:
        """Return the situation that the laws read.

        `capacity_per_s` is the measured or learned capacity of one replica, and `of_fewer_per_s`
        the mean capacity if only 1, 2, … replicas stayed. A capacity in the settings replaces both.
        """
        sample = reading.sample
        if scaling.capacity_per_s is not None:
            # The setting holds for all replicas, so the means for fewer replicas say nothing more.
            capacity_per_s, of_fewer_per_s = scaling.capacity_per_s, ()
        elif capacity_per_s is None:
            capacity_per_s = scaling.rate_max_per_s
        max_load, min_load = scaling.max_load, scaling.min_load
        if scaling.max_wait_s is not None and capacity_per_s is not None:
            max_load = scaling.max_wait_s * capacity_per_s
            min_load *= max_load / scaling.max_load
        coming = len(reading.starting) + sample.pending
        boot_s = scaling.boot_s if scaling.boot_s is not None else self.lead_s
        # These two laws filter the arrival rate themselves.
        raw = scaling.policy in (ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT)
        return QueueSituation(
            at=sample.at,
            serving=len(reading.serving),
            coming=coming,
            draining=len(reading.draining),
            away=reading.unreachable,
            waiting=reading.waiting,
            unacknowledged=reading.unacknowledged,
            arrived_per_s=sample.arrived_per_s if raw else self._arrived_per_s,
            consumed_per_s=reading.consumed_per_s,
            oldest_age_s=reading.oldest_age_s,
            capacity_per_s=capacity_per_s,
            capacity_of_fewer_per_s=of_fewer_per_s,
            min_load=min_load,
            max_load=max_load,
            loads_follow_capacity=scaling.max_wait_s is not None,
            inhibited=coming > 0 or sample.at < self._up_at + scaling.inhibition_s,
            start_s=START_S,
            boot_s=max(boot_s or 0.0, START_S),
            slots_free=sample.slots_free,
            slots_per_machine=max(scaling.slots_per_machine, 1),
            keeps_warm=sample.keeps_warm,
        )


# The totals of one sample, whether it is usable, and the capacity of each replica.
#
# The capacity of a replica can be measured only while it is at its limit. Then at least half a
# period's work waits in it, and none of its consumers is idle. The rate at which it consumes is
# then its capacity. A higher measurement changes the estimate by half of the difference, a lower
# one by a tenth: a short pause is not a loss of capacity.
#
# An idle replica keeps its last estimate. A replica that was slow and has recovered therefore
# counts as slow until it is needed again, and it is the first to be removed. Removals use the mean
# capacity of the replicas that would stay (`of_fewer`), not the mean of all.


# Seconds. The rate of a younger replica shows its start and not its capacity.
STARTED_S = 3.0
BUSY_WAITING_MIN = 5
RISE = 0.5
FALL = 0.1
# A replica is slow below this part of the mean capacity of the other replicas.
SLOW = 0.75


class SampleTotals:
    """The sums over all replicas of one usable sample."""

    __slots__ = (
        "consumed_per_s",
        "consumers",
        "draining",
        "oldest_age_s",
        "sample",
        "serving",
        "starting",
        "unacknowledged",
        "unreachable",
        "waiting",
    )

    def __init__(self, sample: QueueSample) -> None:
        self.sample = sample
        self.serving: list[ReplicaSample] = []
        self.starting: list[ReplicaSample] = []
        self.draining: list[ReplicaSample] = []
        self.unreachable = 0
        self.consumers = 0
        self.waiting = sample.alias_waiting
        self.unacknowledged = 0
        self.consumed_per_s = 0.0
        self.oldest_age_s = 0.0
        for one in sample.replicas:
            if one.state is ReplicaState.SERVING:
                self.serving.append(one)
            elif one.state is ReplicaState.STARTING:
                self.starting.append(one)
            else:
                self.draining.append(one)
            if not one.reachable:
                # A starting replica has no owner yet, which is not a failure.
                self.unreachable += one.state is not ReplicaState.STARTING
                continue
            self.consumers += one.consumers
            self.waiting += one.waiting
            self.unacknowledged += one.unacknowledged
            self.consumed_per_s += one.consumed_per_s
            self.oldest_age_s = max(self.oldest_age_s, one.oldest_age_s)

    @property
    def is_busy(self) -> bool:
        """Whether any message waits, is unacknowledged, or arrives."""
        return bool(self.waiting or self.unacknowledged or self.sample.arrived_per_s)

    @property
    def replicas(self) -> int:
        """The number of replicas that serve, start or are ordered; draining ones do not count."""
        return len(self.serving) + len(self.starting) + self.sample.pending


def unusable_reason(sample: QueueSample, scaling: Scaling) -> tuple[str, str] | None:
    """Return the rule and the sentence that say why a sample is unusable; None if it is usable."""
    if not sample.age_s <= scaling.stale_s:
        if not math.isfinite(sample.age_s):
            return "held: stale", "Nothing has been measured yet."
        return (
            "held: stale",
            f"The oldest measurement is {sample.age_s:.1f} s old, past {scaling.stale_s:g} s.",
        )
    figures = sample.at + sample.arrived_per_s + sample.resource_load
    least = min(sample.arrived_per_s, sample.resource_load, sample.alias_waiting, sample.pending)
    numbers = set()
    for one in sample.replicas:
        numbers.add(one.number)
        figures += (
            one.produced_per_s + one.consumed_per_s + one.oldest_age_s + one.share + one.age_s
        )
        least = min(
            least,
            one.produced_per_s,
            one.consumed_per_s,
            one.waiting,
            one.unacknowledged,
            one.producers,
            one.consumers,
            one.share,
        )
    if not math.isfinite(figures) or not least >= 0.0:
        return "held: no measurement", "A measurement is missing, not a number, or below 0."
    if len(numbers) != len(sample.replicas):
        return "held: no measurement", "A replica is in the sample twice."
    return None


class ReplicaCapacities:
    """The estimated capacity of each replica, in messages per second."""

    def __init__(self) -> None:
        self._per_s: dict[int, float] = {}

    @property
    def per_s(self) -> Mapping[int, float]:
        return self._per_s

    def learn(self, reading: SampleTotals, period_s: float) -> None:
        """Update the estimates from replicas that are at their limit now.

        A rate above the estimate raises it in any case: a replica cannot consume more than its
        capacity.
        """
        known = self._per_s
        for one in reading.serving:
            if not one.reachable or one.age_s < STARTED_S:
                continue
            seen = one.consumed_per_s
            before = known.get(one.number)
            busy = not one.waiting_consumers and one.waiting >= max(
                0.5 * seen * period_s, BUSY_WAITING_MIN
            )
            if busy and seen > 0.0:
                known[one.number] = (
                    seen
                    if before is None
                    else before + (RISE if seen > before else FALL) * (seen - before)
                )
            elif before is not None and seen > before:
                known[one.number] = before + RISE * (seen - before)
        if len(known) > 2 * len(reading.sample.replicas) + 8:
            here = {one.number for one in reading.sample.replicas}
            self._per_s = {number: rate for number, rate in known.items() if number in here}

    def typical(self, reading: SampleTotals) -> float | None:
        """Return the mean capacity of the serving replicas; None if nothing is known.

        If no serving replica has an estimate, the mean of all known replicas is used.
        """
        known = self._per_s
        here = [known[one.number] for one in reading.serving if one.number in known]
        if not here:
            here = list(known.values())
        return sum(here) / len(here) if here else None

    def slow(self, reading: SampleTotals) -> set[int]:
        """Return the serving replicas that can do much less than the mean of the others."""
        known = self._per_s
        here = {one.number: known[one.number] for one in reading.serving if one.number in known}
        others, total = len(here) - 1, sum(here.values())
        return {number for number, rate in here.items() if rate * others < SLOW * (total - rate)}

    def of_fewer(self, staying: Iterable[int]) -> tuple[float, ...]:
        """Return the mean capacity of the first of these replicas, of the first two, and so on.

        `staying` is in the order in which replicas stay, so the first to be removed comes last.
        Empty if no capacity is known.
        """
        known = self._per_s
        if not known:
            return ()
        usual = sum(known.values()) / len(known)
        total, count = 0.0, 0
        means = []
        for number in staying:
            if number in known:
                total += known[number]
                count += 1
            means.append(total / count if count else usual)
        return tuple(means)
