"""Guards: limits that hold for every law's proposal.

They apply in this order; a later one limits the result of an earlier one:

    last replica       the last one goes only after nothing was to do for the whole cool-down time
    reversal           no more replicas than before a scale-up that lowered the throughput
    max, min           never above, never below
    consumers          without a `worker` setting, no replica that would have no consumer
    unreachable        nothing is removed while a replica cannot be reached
    cool-down          nothing is removed for some time after any change

In manual mode the override is the proposal. It is only limited by max, min and unreachable
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.core.decisions import Migrate, ReplicaSample, Retire
from tidegate.core.reasons import Reason
from tidegate.core.topology import ControlMode, MemberRole, ReplicaState, Scaling, ScalingPolicy
from tidegate.laws.scaling import HarmfulScaleUp, Proposal, QueueSituation
from tidegate.laws.scaling import clients as clients_module

if TYPE_CHECKING:
    from tidegate.control.queues.autoscaler import SampleTotals


def apply_guards(
    scaling: Scaling,
    now: QueueSituation,
    reading: SampleTotals,
    wish: Proposal,
    harm: HarmfulScaleUp | None,
    changed_at: float,
    busy_at: float,
) -> Proposal:
    """Return the proposal within all limits, with the rule and the reasons that explain it.

    `harm` is the scale-up that the reversal guard remembers. `changed_at` is when the number of
    replicas last changed, and `busy_at` when there was last anything to do.
    """
    count = now.replicas
    wanted, rule, reasons = wish
    manual = scaling.steering is ControlMode.MANUAL
    harm = None if manual else harm
    if not manual and wanted < 1 and (last := _last(scaling, now, reading, busy_at)) is not None:
        wanted, rule, reasons = last
    if harm is not None and wanted > harm.fewer:
        wanted = max(harm.fewer, scaling.replicas.min)
        rule = "reversal guard"
        harmed = Reason.SCALE_UP_DID_HARM(
            fewer=harm.fewer,
            more=harm.more,
            before_per_s=harm.before_per_s,
            after_per_s=harm.after_per_s,
            left_s=harm.until - now.at,
        )
        reasons = (harmed,)
    low, high = scaling.replicas.min, max(scaling.replicas.max, scaling.replicas.min)
    if wanted > high:
        wanted = high
        rule = f"{rule}, at max"
        reasons += (Reason.AT_MAX(most=high),)
    if count < low and wanted <= low:
        return Proposal(low, "below min", (Reason.BELOW_MIN(count=count, least=low),))
    if wanted < low:
        rule = f"{rule}, at min"
        wanted = low
        reasons += (Reason.AT_MIN(least=low),)
    if wanted > count and not manual:
        attended = _attended(scaling, reading, count)
        if attended is not None and wanted > attended.replicas:
            return attended._replace(replicas=max(attended.replicas, count))
    if wanted < count:
        # An override, a bound and a reversal do not wait. For the policy "length" the stabilisation
        # window of the Kubernetes HPA is the whole cool-down.
        waits = not (
            manual or count > high or harm is not None or scaling.policy is ScalingPolicy.LENGTH
        )
        held = _keeps(now, reading, changed_at + scaling.cooldown_period_s if waits else now.at)
        if held is not None:
            return held._replace(replicas=count, reasons=(*reasons, *held.reasons))
    return Proposal(wanted, rule, reasons)


def _last(
    scaling: Scaling, now: QueueSituation, reading: SampleTotals, busy_at: float
) -> Proposal | None:
    """Return the proposal to keep or create one replica although the law wants none.

    None if zero replicas are right. The decision uses what waits and arrives now. The average
    arrival rate remembers a message for minutes and would bring back a replica that has just been
    removed.
    """
    if reading.is_busy:
        little = Reason.LITTLE_TO_DO(
            waiting=reading.waiting,
            unacknowledged=reading.unacknowledged,
            arrived_per_s=reading.sample.arrived_per_s,
        )
        return Proposal(1, "something to do", (little,))
    left_s = busy_at + scaling.cooldown_period_s - now.at
    if now.replicas and left_s > 0.0:
        nothing = Reason.NOTHING_TO_DO_YET(left_s=left_s)
        return Proposal(1, "something to do a moment ago", (nothing,))
    return None


def _attended(scaling: Scaling, reading: SampleTotals, count: int) -> Proposal | None:
    """Return the proposal limited to the number of consumers; None if consumers do not limit it.

    They do not limit it under the policies "clients" and "fixed". Nor do they if workers come with
    each replica, or if consumers move to new replicas by themselves.
    """
    if scaling.worker is not None or scaling.policy in (
        ScalingPolicy.CLIENTS,
        ScalingPolicy.FIXED,
    ):
        return None
    if reading.sample.consumers_roam:
        return None
    # Without any consumer the limit does not apply: they may not be counted, or connect later.
    if not reading.consumers:
        return None
    return Proposal(
        max(reading.consumers, scaling.replicas.min),
        "held: no consumers for another replica",
        (Reason.NO_CONSUMERS(consumers=reading.consumers, count=count),),
    )


def _keeps(now: QueueSituation, reading: SampleTotals, until: float) -> Proposal | None:
    """Return why no replica is removed although fewer would do; None if one may be removed.

    `until` is the end of the cool-down, in seconds of the loop's clock.
    """
    if reading.unreachable:
        away = Reason.REPLICAS_AWAY(unreachable=reading.unreachable)
        return Proposal(now.replicas, "held: a replica is away", (away,))
    if now.at < until:
        return Proposal(now.replicas, "held: cool-down", (Reason.COOL_DOWN(left_s=until - now.at),))
    return None


# Clients of a queue: how many replicas they need, which ones move, and which replica can end.
#
# Workers that come with a replica belong to it. They never move, and they do not keep a draining
# replica from ending, because they end with it. Under the policy "clients" both producers and
# consumers are distributed over replicas. Under the other policies producers distribute their
# messages by share, so only consumers move.


# A draining replica's share falls to 0 in steps; a share below this value counts as 0.
NO_SHARE = 1e-9


def client_proposal(scaling: Scaling, now: QueueSituation, reading: SampleTotals) -> Proposal:
    """Return the proposal of the policy "clients": rules R5 and R6."""
    each = _capacity_clients(scaling)
    standings = _standings(reading.serving + reading.starting + reading.draining, each)
    # Count ordered replicas as capacity, or each period would order them again.
    standings += [
        clients_module.ReplicaLoad(-1 - index, capacity_clients=each)
        for index in range(reading.sample.pending)
    ]
    resource = reading.sample.resource_load
    change = clients_module.capacity_change(
        standings, inhibited=now.inhibited, resource_load=resource
    )
    load = clients_module.election_load(standings, resource)
    clients = sum(one.clients for one in standings)
    capacity = sum(one.capacity_clients for one in standings if not one.marked)
    seen = Reason.CLIENT_LOAD(clients=clients, capacity=capacity, resource=resource, load=load)
    count = now.replicas
    if change.create or change.unmark is not None:
        return Proposal(count + 1, change.rule, (seen, Reason.CLIENTS_NEED_MORE()))
    if change.mark is not None:
        fewer = Reason.CLIENTS_NEED_FEWER(clients=capacity - each)
        return Proposal(count - 1, change.rule, (seen, fewer))
    rule = f"held: {change.rule}" if now.inhibited else change.rule
    return Proposal(count, rule, (seen, Reason.CLIENTS_WITHIN_BOUNDS()))


def migrations(scaling: Scaling, reading: SampleTotals) -> list[Migrate]:
    """Return moves of clients: away from draining replicas, and towards even numbers."""
    seen = [one for one in reading.serving + reading.draining if one.reachable]
    standings = _standings(seen, _capacity_clients(scaling))
    moves: list[clients_module.ClientTransfer] = []
    if scaling.policy is ScalingPolicy.CLIENTS:
        moves += clients_module.client_transfers(MemberRole.PRODUCER, standings)
    own = own_workers(scaling)
    if own:
        standings = [one._replace(consumers=max(one.consumers - own, 0)) for one in standings]
    moves += clients_module.client_transfers(MemberRole.CONSUMER, standings)
    return [Migrate(role, source, target, clients) for role, source, target, clients in moves]


def retirements(scaling: Scaling, reading: SampleTotals) -> list[Retire]:
    """Return the draining replicas that can end.

    A replica can end if it is reachable, has no share, no messages and no producers, and no
    consumers except its own workers.
    """
    own = own_workers(scaling)
    return [
        Retire(one.number)
        for one in reading.draining
        if one.reachable
        and one.share <= NO_SHARE
        and not one.waiting
        and not one.unacknowledged
        and not one.producers
        and one.consumers <= own
    ]


def _standings(
    replicas: Iterable[ReplicaSample], capacity_clients: float
) -> list[clients_module.ReplicaLoad]:
    return [
        clients_module.ReplicaLoad(
            one.number,
            one.producers,
            one.consumers,
            capacity_clients,
            one.state is ReplicaState.DRAINING,
            one.waiting + one.unacknowledged,
        )
        for one in replicas
    ]


def _capacity_clients(scaling: Scaling) -> float:
    return scaling.capacity_clients or clients_module.CAPACITY_CLIENTS


def own_workers(scaling: Scaling) -> int:
    """Workers that come with each replica and end with it."""
    return scaling.workers_per_replica if scaling.worker is not None else 0
