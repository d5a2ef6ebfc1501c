"""Clients of a queue: how many replicas they ask for, who goes over, which replica can go.

Workers that come with a replica belong to it: they are never sent over, and they do not keep a
draining replica from going, for they end with it. Under the policy "clients" producers and
consumers are spread; under the others producers deal by share and only consumers have a place.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.control.reading import Reading
from tidegate.core.replication import ReplicaState, Role
from tidegate.core.scaling import Scaling, ScalingPolicy
from tidegate.core.steering import Migrate, ReplicaSample, Retire
from tidegate.laws import election
from tidegate.laws.wish import Situation, Wish

# A drain's share goes down to 0 in steps; what is below this is 0.
NO_SHARE = 1e-9


def by_clients(scaling: Scaling, now: Situation, reading: Reading) -> Wish:
    """The policy "clients": R5 and R6."""
    each = _capacity_clients(scaling)
    standings = _standings(reading.serving + reading.starting + reading.draining, each)
    # What is ordered has capacity too, or each period would order it again.
    standings += [
        election.Standing(-1 - index, capacity_clients=each)
        for index in range(reading.sample.pending)
    ]
    resource = reading.sample.resource_load
    change = election.provision(standings, inhibited=now.inhibited, resource_load=resource)
    load = election.load(standings, resource)
    clients = sum(one.clients for one in standings)
    capacity = sum(one.capacity_clients for one in standings if not one.marked)
    seen = (
        f"{clients} clients for a capacity of {capacity:g} and machines {resource:.0%} busy: "
        f"L_c = {load:.2f}"
    )
    count = now.replicas
    if change.create or change.unmark is not None:
        return Wish(count + 1, change.rule, f"{seen}.", "At L_c ≤ 1 nothing would have been added.")
    if change.mark is not None:
        return Wish(
            count - 1,
            change.rule,
            f"{seen}; one replica less is still enough.",
            f"With more than {capacity - each:g} clients all would stay.",
        )
    return Wish(
        count,
        f"held: {change.rule}" if now.inhibited else change.rule,
        f"{seen}.",
        "Above L_c = 1 a replica would be added; one goes when its capacity is not needed.",
    )


def migrations(scaling: Scaling, reading: Reading) -> list[Migrate]:
    """Connected clients to where they are missing: away from what goes, and towards even."""
    seen = [one for one in reading.serving + reading.draining if one.reachable]
    standings = _standings(seen, _capacity_clients(scaling))
    moves: list[election.Transfer] = []
    if scaling.policy is ScalingPolicy.CLIENTS:
        moves += election.transfers(Role.PRODUCER, standings)
    own = own_workers(scaling)
    if own:
        standings = [one._replace(consumers=max(one.consumers - own, 0)) for one in standings]
    moves += election.transfers(Role.CONSUMER, standings)
    return [Migrate(role, source, target, clients) for role, source, target, clients in moves]


def retirements(scaling: Scaling, reading: Reading) -> list[Retire]:
    """What is draining, gets nothing, holds nothing, and has nobody but its own workers."""
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
) -> list[election.Standing]:
    return [
        election.Standing(
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
    return scaling.capacity_clients or election.CAPACITY_CLIENTS


def own_workers(scaling: Scaling) -> int:
    """Workers that come with each replica and end with it."""
    return scaling.workers_per_replica if scaling.worker is not None else 0
