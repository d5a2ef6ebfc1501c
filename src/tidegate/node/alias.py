"""The state of a logical queue at its owner: members, and the replica of each.

A member is one role of one session: the session joins once as a producer and once for each of its
consumers. Only this node knows the members. After the queue has moved, the new owner starts with
none and the sessions join again. Each consumer is assigned to a replica; each producer only under
the policy `clients`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue, LimitReached, QueueNotExisting
from tidegate.core.replication import ReplicaPlace, ReplicaState, Role, Topology
from tidegate.core.scaling import ScalingPolicy
from tidegate.laws.election import CAPACITY_CLIENTS, Standing, elect
from tidegate.wire.packets.membership import Join, JoinAgain, JoinResponse, MigrateClients, Migrated
from tidegate.wire.packets.topologies import TopologyChanged

if TYPE_CHECKING:
    from tidegate.node.session import Session

# Assigned to no replica: a producer that puts to all of them, or a member that waits for one.
_NO_REPLICA = 0
# Members of one session at one queue.
_COMINGS_MAX = 10_000


class Member:
    """One role of one session: its producers, or one of its consumers."""

    __slots__ = ("bound", "is_counted", "number", "replica_id", "role", "session")

    def __init__(self, session: Session, role: Role, number: int) -> None:
        self.session = session
        self.role = role
        self.number = number
        self.replica_id = _NO_REPLICA
        # Whether it is in the counts of its replica.
        self.is_counted = False
        # Whether it was bound to its replica and must not be moved.
        self.bound = False


# (queue id, client id, consumer number) -> messages that the consumer holds there; None: the
# replica is not at this node.
Unacknowledged = Callable[[int, int, int], int | None]


class Alias:
    """One logical queue, as known at the node that owns it."""

    def __init__(self, topology: Topology, unacknowledged: Unacknowledged) -> None:
        self.topology = topology
        self._unacknowledged = unacknowledged
        self._joined: dict[Session, dict[tuple[Role, int], Member]] = {}
        # Members per replica and role, updated as members come and go. Counting them for each
        # election would make it slow with many members.
        self._at: Counter[tuple[int, Role]] = Counter()

    @property
    def _members(self) -> Iterator[Member]:
        return (member for mine in self._joined.values() for member in mine.values())

    # Joining and leaving

    def join(self, session: Session, packet: Join) -> JoinResponse:
        """Add a member, or update one that joins again; it keeps its replica if possible.

        Raises `LimitReached` if the session has too many members, and `QueueNotExisting` if the
        replica that it is bound to is gone.
        """
        mine = self._joined.setdefault(session, {})
        key = (packet.role, packet.member)
        member = mine.get(key)
        if member is None:
            if len(mine) >= _COMINGS_MAX:
                raise LimitReached(f"a connection comes to a queue at most {_COMINGS_MAX} times")
            member = mine[key] = Member(session, packet.role, packet.member)
        member.bound = packet.bound and packet.wanted is not None
        try:
            self._place(member, self._place_for(member, packet.wanted))
        except QueueNotExisting:
            self.leave(session, *key)
            raise
        return JoinResponse(self.topology, member.replica_id)

    def _place(self, member: Member, replica_id: int | None) -> None:
        """Note the member's replica from now on; None: the member leaves."""
        if member.is_counted:
            before = (member.replica_id, member.role)
            self._at[before] -= 1
            if not self._at[before]:
                del self._at[before]
        member.is_counted = replica_id is not None
        if replica_id is not None:
            member.replica_id = replica_id
            self._at[replica_id, member.role] += 1

    def leave(self, session: Session, role: Role, number: int) -> None:
        mine = self._joined.get(session, {})
        member = mine.pop((role, number), None)
        if member is not None:
            self._place(member, None)
        if not mine:
            self.forget(session)

    def forget(self, session: Session) -> None:
        """Remove all members of a session that has ended."""
        for member in self._joined.pop(session, {}).values():
            self._place(member, None)

    def _place_for(self, member: Member, wanted: int | None) -> int:
        place = None if wanted is None else self.topology.replica(wanted)
        if member.bound:
            if place is None:
                raise QueueNotExisting(f"queue {self.topology.queue!r} has no replica {wanted}")
            return place.queue_id
        if not self._is_elected(member.role):
            return _NO_REPLICA
        if place is not None and place.state is not ReplicaState.DRAINING:
            return place.queue_id
        return self._elected(member)

    def _is_elected(self, role: Role) -> bool:
        """Return whether members of this role are assigned to one replica each."""
        return role is Role.CONSUMER or self.topology.scaling.policy is ScalingPolicy.CLIENTS

    def _elected(self, member: Member) -> int:
        """Return the best replica for a member; `_NO_REPLICA` if there is none."""
        before = member.replica_id if member.is_counted else None
        self._place(member, None)  # It must not count itself
        capacity = self.topology.scaling.capacity_clients or CAPACITY_CLIENTS
        standings = [
            Standing(place.number, *self._counts_at(place), capacity)
            for place in self.topology.replicas
            if _takes_clients(place)
        ]
        self._place(member, before)
        number = elect(member.role, standings)
        place = None if number is None else self.topology.replica(number)
        return _NO_REPLICA if place is None else place.queue_id

    def _counts_at(self, place: ReplicaPlace) -> tuple[int, int]:
        at = self._at
        return at[place.queue_id, Role.PRODUCER], at[place.queue_id, Role.CONSUMER]

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return replica number -> number of producers and consumers there."""
        return {place.number: self._counts_at(place) for place in self.topology.replicas}

    @property
    def producers(self) -> int:
        return sum(count for (_, role), count in self._at.items() if role is Role.PRODUCER)

    # Notifications

    def end(self) -> None:
        """Tell all members to join again: the queue has another owner, or no replicas any more."""
        for session in list(self._joined):
            session.send(JoinAgain(self.topology.queue_id), 0)
        self._joined.clear()
        self._at.clear()

    def show(self, topology: Topology) -> None:
        """Tell all members about a changed topology, and move those whose replica is leaving."""
        if topology == self.topology:
            return
        self.topology = topology
        changed = TopologyChanged(topology)
        for session in list(self._joined):
            session.send(changed, 0)
        states = {place.queue_id: place.state for place in topology.replicas}
        for member in list(self._members):
            if member.bound:
                continue
            if not self._is_elected(member.role):
                self._send_to(member, _NO_REPLICA)
            elif states.get(member.replica_id, ReplicaState.DRAINING) is ReplicaState.DRAINING:
                # Its replica is gone or draining, or it had none.
                elsewhere = self._elected(member)
                if elsewhere != _NO_REPLICA or member.replica_id not in states:
                    self._send_to(member, elsewhere)

    def _send_to(self, member: Member, replica_id: int) -> None:
        moves = member.replica_id != replica_id
        self._place(member, replica_id)
        if moves:
            member.session.send(
                Migrated(self.topology.queue_id, member.role, member.number, replica_id), 0
            )

    def migrate(self, packet: MigrateClients) -> int:
        """Move members of one replica to another, starting with those holding fewest messages.

        Returns how many were moved. Raises `InvalidValue` if the target does not accept clients.
        """
        if not self.takes_clients(packet.target_id):
            raise InvalidValue(f"queue {packet.target_id} is no replica that takes clients")
        there = [
            member
            for member in self._members
            if member.role is packet.role
            and member.replica_id == packet.source_id
            and not member.bound
        ]
        chosen = sorted(there, key=self._busyness)[: max(packet.count, 0)]
        for member in chosen:
            self._send_to(member, packet.target_id)
        return len(chosen)

    def takes_clients(self, queue_id: int) -> bool:
        """Return whether members can be moved to a replica, as far as this node knows."""
        return any(
            place.queue_id == queue_id and _takes_clients(place) for place in self.topology.replicas
        )

    def _busyness(self, member: Member) -> int:
        held = self._unacknowledged(member.replica_id, member.session.client_id, member.number)
        return held or 0


def _takes_clients(place: ReplicaPlace) -> bool:
    return place.state is ReplicaState.SERVING and place.address is not None


def reachable(places: Iterable[ReplicaPlace]) -> list[ReplicaPlace]:
    """Return the replicas that serve and have an owner."""
    return [place for place in places if _takes_clients(place)]
