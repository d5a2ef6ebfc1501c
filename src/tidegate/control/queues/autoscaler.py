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
from dataclasses import replace

from tidegate.control.clients import by_clients, migrations, retirements
from tidegate.control.guards import guarded
from tidegate.control.history import History
from tidegate.control.reading import Capacities, Reading, complaint
from tidegate.core.scaling import Scaling, ScalingPolicy, Steering
from tidegate.core.steering import (
    Action,
    AddReplica,
    CancelDrain,
    CancelPending,
    Decision,
    Drain,
    QueueSample,
    SetShares,
)
from tidegate.laws.elasticity import DEFAULT_ELASTICITY, Elasticity, LoadLaw
from tidegate.laws.exchange import DEFAULT_WORTH, Worth, exchanges
from tidegate.laws.feed_forward import FeedForward, FeedForwardLaw
from tidegate.laws.length_target import LengthLaw
from tidegate.laws.placement import goes_first
from tidegate.laws.reversal import Caution, ReversalGuard
from tidegate.laws.shares import DEFAULT_FLOW, Flow, differ, flow_shares, shares_by_hand
from tidegate.laws.wait_sizing import DEFAULT_WAIT_SIZING, Pledge, WaitLaw
from tidegate.laws.wish import Situation, Wish

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
        elasticity: Elasticity = DEFAULT_ELASTICITY,
        feed_forward: FeedForward | None = None,
        flow: Flow = DEFAULT_FLOW,
        worth: Worth = DEFAULT_WORTH,
    ) -> None:
        self._elasticity = elasticity
        self._feed_forward = feed_forward
        self._flow = flow
        self._worth = worth
        self._capacities = Capacities()
        self._history = History()
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
        if _law_words(before) != _law_words(scaling):
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
        pledge: Pledge | None = None,
        capacity_guess_per_s: float | None = None,
    ) -> Decision:
        """Return the decision for this sample, with the sentences that explain it.

        `pledge` is the target of the agreement; only the policy "agreement" needs it, and holds
        without it. `capacity_guess_per_s` is used until the capacity of a replica has been
        measured; None means that nothing is known.
        """
        scaling = self._scaling
        held = complaint(sample, scaling)
        if held is None and scaling.policy is ScalingPolicy.AGREEMENT:
            if isinstance(self._law, WaitLaw) and pledge is not None:
                self._law.pledge = pledge
            elif pledge is None:
                held = "held: no agreement", "There is no agreement that can be read."
        if held is not None:
            return self._held(sample, *held)
        reading = Reading(sample)
        period_s = self._history.take(reading, scaling)
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
        wanted, rule, reason, otherwise = guarded(
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
        shares = flow_shares(
            sample.replicas,
            period_s,
            self._known_capacities(reading),
            correct_lengths=not moves,
            flow=self._flow,
            periods=self._history.periods,
        )
        said = None if scaling.shares is None else shares_by_hand(sample.replicas, scaling.shares)
        before = {one.number: one.share for one in sample.replicas}
        if said is not None:
            if any(abs(part - before[number]) >= 1e-3 for number, part in said.items()):
                actions.append(SetShares(said))
        elif shares and differ(before, shares, self._flow):
            actions.append(SetShares(shares))
        actions += moves
        if sample.at - self._migrated_at >= MIGRATION_PERIODS * scaling.polling_interval_s:
            going_over = migrations(scaling, reading)
            if going_over:
                self._migrated_at = sample.at
            actions += going_over
        recommended = scaling.steering is Steering.RECOMMEND
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
                setting = replace(DEFAULT_WAIT_SIZING, down_s=scaling.cooldown_period_s)
                return WaitLaw(Pledge(), setting)
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

    def _wish(self, now: Situation, reading: Reading) -> tuple[str, Wish]:
        scaling = self._scaling
        if scaling.steering is Steering.MANUAL:
            wanted = scaling.replicas_wanted
            if wanted is None:
                wanted = now.replicas
            # Step the law although its proposal is not used, so that its filters are current when
            # manual mode ends.
            if self._law is not None:
                self._law.step(now)
            return "manual", Wish(
                wanted,
                "manual",
                f"A person has said {_counted(wanted)}.",
                'Steering "auto" would let the policy speak.',
            )
        if self._law is not None:
            return scaling.policy.value, self._law.step(now)
        if scaling.policy is ScalingPolicy.CLIENTS:
            return "clients", by_clients(scaling, now, reading)
        return "fixed", Wish(
            scaling.replicas.min,
            "fixed",
            f"The policy is fixed: {_counted(scaling.replicas.min)}.",
            "Another policy or another `replicas.min`.",
        )

    def _manoeuvre(self, reading: Reading, wanted: int, leaving: list[int]) -> list[Action] | None:
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

    def _leaving(self, reading: Reading) -> list[int]:
        """Return the replicas in the order of removal.

        The law's estimate for fewer replicas and the drain use the same order. Otherwise a removal
        would be decided for one replica and executed on another.
        """
        here = reading.serving + reading.starting
        slow = self._capacities.slow(reading)
        return goes_first(here, self._scaling.provisioning, len(here), slow)

    def _known_capacities(self, reading: Reading) -> dict[int, float]:
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


def _caution(scaling: Scaling) -> Caution:
    # Judge a scale-up before the inhibition ends: the next scale-up would hide its effect.
    return Caution(
        settle_s=SETTLE_PART * scaling.inhibition_s, remembered_s=scaling.reversal_memory_s
    )


def _law_words(scaling: Scaling) -> tuple[object, ...]:
    """Return the settings that a law is made from; when they change, its memory is invalid."""
    words: tuple[object, ...] = (scaling.policy,)
    if scaling.policy is ScalingPolicy.LOAD:
        words += (scaling.replicas_per_step,)
    if scaling.policy is ScalingPolicy.AGREEMENT:
        words += (scaling.cooldown_period_s,)
    if scaling.policy is ScalingPolicy.LENGTH:
        words += (scaling.queue_length, scaling.polling_interval_s, scaling.cooldown_period_s)
    return words


def _inputs(now: Situation, reading: Reading, law: object) -> dict[str, float]:
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
        if law.pledge.wait_s is not None:
            figures["wait_warns_at_s"] = law.pledge.wait_s
    # An unknown input is left out instead of being shown as 0.
    if now.capacity_per_s is not None:
        figures["capacity_per_s"] = now.capacity_per_s
    return figures
