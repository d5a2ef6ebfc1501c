"""Clients of a queue: how many replicas they need, which ones move, and which replica can end.

Workers that come with a replica belong to it. They never move, and they do not keep a draining
replica from ending, because they end with it. Under the policy "clients" both producers and
consumers are distributed over replicas. Under the other policies producers distribute their
messages by share, so only consumers move.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.control.reading import Reading
from tidegate.core.replication import ReplicaState, Role
from tidegate.core.scaling import Scaling, ScalingPolicy
from tidegate.core.steering import Migrate, ReplicaSample, Retire
from tidegate.laws import election
from tidegate.laws.wish import Situation, Wish

# A draining replica's share falls to 0 in steps; a share below this value counts as 0.
NO_SHARE = 1e-9


def by_clients(scaling: Scaling, now: Situation, reading: Reading) -> Wish:
    """Return the proposal of the policy "clients": rules R5 and R6."""
    each = _capacity_clients(scaling)
    standings = _standings(reading.serving + reading.starting + reading.draining, each)
    # Count ordered replicas as capacity, or each period would order them again.
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
    """Return moves of clients: away from draining replicas, and towards even numbers."""
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
