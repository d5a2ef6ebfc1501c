"""A logical queue at the node that owns its alias: who has come, where each is, what they are told.

Members are the comings of connections, not of clients: one connection comes as a producer and with
each of its consumers. They are remembered here only; a new owner of the alias starts with none, and
they come again. Consumers are always elected onto a replica, producers under the policy "clients".
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

# Everywhere, or nowhere yet.
_NO_REPLICA = 0
# Of one connection to one queue.
_COMINGS_MAX = 10_000


class Member:
    """One coming of a connection."""

    __slots__ = ("bound", "is_counted", "number", "replica_id", "role", "session")

    def __init__(self, session: Session, role: Role, number: int) -> None:
        self.session = session
        self.role = role
        self.number = number
        self.replica_id = _NO_REPLICA
        # Whether it is one of those at its replica.
        self.is_counted = False
        # There or nowhere.
        self.bound = False


# Of a client's consumer at a replica, by queue id: what it holds; None: it is not known here.
Unacknowledged = Callable[[int, int, int], int | None]


class Alias:
    """One logical queue, as its owner sees it."""

    def __init__(self, topology: Topology, unacknowledged: Unacknowledged) -> None:
        self.topology = topology
        self._unacknowledged = unacknowledged
        self._joined: dict[Session, dict[tuple[Role, int], Member]] = {}
        # Kept as members come and go: an election that counted them all would be as slow as many.
        self._at: Counter[tuple[int, Role]] = Counter()

    @property
    def _members(self) -> Iterator[Member]:
        return (member for mine in self._joined.values() for member in mine.values())

    # Coming and going

    def join(self, session: Session, packet: Join) -> JoinResponse:
        """A member comes, or comes again: then it stays where it is, if it can."""
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
        """Where it is from now on; None: it goes."""
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
        """A connection has ended."""
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
        """Whether members of this kind are at one replica each."""
        return role is Role.CONSUMER or self.topology.scaling.policy is ScalingPolicy.CLIENTS

    def _elected(self, member: Member) -> int:
        """The best replica for a member, whether or not it is at one now."""
        before = member.replica_id if member.is_counted else None
        self._place(member, None)  # it does not count itself
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
        """Number of a replica → how many producers (N_i) and consumers (M_i) are there."""
        return {place.number: self._counts_at(place) for place in self.topology.replicas}

    @property
    def producers(self) -> int:
        return sum(count for (_, role), count in self._at.items() if role is Role.PRODUCER)

    # What they are told

    def end(self) -> None:
        """Another node owns the alias, or it is a plain queue now: all have to ask again."""
        for session in list(self._joined):
            session.send(JoinAgain(self.topology.queue_id), 0)
        self._joined.clear()
        self._at.clear()

    def show(self, topology: Topology) -> None:
        """Things are other than they were: everyone hears of it, some have to go elsewhere."""
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
                # Its replica is gone or to go, or it waited for one.
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
        """Have members of one replica go to another, the idlest first; how many do."""
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
        """Whether members can be sent to a replica, as far as is known."""
        return any(
            place.queue_id == queue_id and _takes_clients(place) for place in self.topology.replicas
        )

    def _busyness(self, member: Member) -> int:
        held = self._unacknowledged(member.replica_id, member.session.client_id, member.number)
        return held or 0


def _takes_clients(place: ReplicaPlace) -> bool:
    return place.state is ReplicaState.SERVING and place.address is not None


def reachable(places: Iterable[ReplicaPlace]) -> list[ReplicaPlace]:
    """Those to which messages can be handed over."""
    return [place for place in places if _takes_clients(place)]
