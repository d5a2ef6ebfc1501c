"""The state of a logical queue at its owner: members, and the replica of each.

A member is one role of one session: the session joins once as a producer and once for each of its
consumers. Only this node knows the members. After the queue has moved, the new owner starts with
none and the sessions join again. Each consumer is assigned to a replica; each producer only under
the policy `clients`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidegate.broker.batch import segment_assignments
from tidegate.broker.replica import Replica
from tidegate.broker.transfer import MOVE_COUNT_MAX, split_segments
from tidegate.core.errors import (
    InvalidValue,
    LimitReached,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import QueueInfo
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.topology import MemberRole, ReplicaInfo, ReplicaState, ScalingPolicy, Topology
from tidegate.laws.scaling.clients import CAPACITY_CLIENTS, ReplicaLoad, elect
from tidegate.protocol.cluster import (
    Join,
    JoinAgain,
    JoinResponse,
    MigrateClients,
    Migrated,
    Pull,
    PullResponse,
    TopologyChanged,
)

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.relay import NodeClients
    from tidegate.broker.session import Session
    from tidegate.broker.transfer import SegmentTransfer


# Assigned to no replica: a producer that puts to all of them, or a member that waits for one.
_NO_REPLICA = 0
# Members of one session at one queue.
_COMINGS_MAX = 10_000


class QueueMember:
    """One role of one session: its producers, or one of its consumers."""

    __slots__ = ("bound", "is_counted", "number", "replica_id", "role", "session")

    def __init__(self, session: Session, role: MemberRole, number: int) -> None:
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


class LogicalQueueState:
    """One logical queue, as known at the node that owns it."""

    def __init__(self, topology: Topology, unacknowledged: Unacknowledged) -> None:
        self.topology = topology
        self._unacknowledged = unacknowledged
        self._joined: dict[Session, dict[tuple[MemberRole, int], QueueMember]] = {}
        # Members per replica and role, updated as members come and go. Counting them for each
        # election would make it slow with many members.
        self._at: Counter[tuple[int, MemberRole]] = Counter()

    @property
    def _members(self) -> Iterator[QueueMember]:
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
            member = mine[key] = QueueMember(session, packet.role, packet.member)
        member.bound = packet.bound and packet.wanted is not None
        try:
            self._place(member, self._place_for(member, packet.wanted))
        except QueueNotExisting:
            self.leave(session, *key)
            raise
        return JoinResponse(self.topology, member.replica_id)

    def _place(self, member: QueueMember, replica_id: int | None) -> None:
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

    def leave(self, session: Session, role: MemberRole, number: int) -> None:
        mine = self._joined.get(session, {})
        member = mine.pop((role, number), None)
        if member is not None:
            self._place(member, None)
        if not mine:
            self.remove_connection(session)

    def remove_connection(self, session: Session) -> None:
        """Remove all members of a session that has ended."""
        for member in self._joined.pop(session, {}).values():
            self._place(member, None)

    def _place_for(self, member: QueueMember, wanted: int | None) -> int:
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

    def _is_elected(self, role: MemberRole) -> bool:
        """Return whether members of this role are assigned to one replica each."""
        return role is MemberRole.CONSUMER or self.topology.scaling.policy is ScalingPolicy.CLIENTS

    def _elected(self, member: QueueMember) -> int:
        """Return the best replica for a member; `_NO_REPLICA` if there is none."""
        before = member.replica_id if member.is_counted else None
        self._place(member, None)  # It must not count itself
        capacity = self.topology.scaling.capacity_clients or CAPACITY_CLIENTS
        standings = [
            ReplicaLoad(place.number, *self._counts_at(place), capacity)
            for place in self.topology.replicas
            if _takes_clients(place)
        ]
        self._place(member, before)
        number = elect(member.role, standings)
        place = None if number is None else self.topology.replica(number)
        return _NO_REPLICA if place is None else place.queue_id

    def _counts_at(self, place: ReplicaInfo) -> tuple[int, int]:
        at = self._at
        return at[place.queue_id, MemberRole.PRODUCER], at[place.queue_id, MemberRole.CONSUMER]

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return replica number -> number of producers and consumers there."""
        return {place.number: self._counts_at(place) for place in self.topology.replicas}

    @property
    def producers(self) -> int:
        return sum(count for (_, role), count in self._at.items() if role is MemberRole.PRODUCER)

    # Notifications

    def end(self) -> None:
        """Tell all members to join again: the queue has another owner, or no replicas any more."""
        for session in list(self._joined):
            session.send(JoinAgain(self.topology.queue_id), 0)
        self._joined.clear()
        self._at.clear()

    def publish_change(self, topology: Topology) -> None:
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

    def _send_to(self, member: QueueMember, replica_id: int) -> None:
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

    def _busyness(self, member: QueueMember) -> int:
        held = self._unacknowledged(member.replica_id, member.session.client_id, member.number)
        return held or 0


def _takes_clients(place: ReplicaInfo) -> bool:
    return place.state is ReplicaState.SERVING and place.address is not None


def reachable(places: Iterable[ReplicaInfo]) -> list[ReplicaInfo]:
    """Return the replicas that serve and have an owner."""
    return [place for place in places if _takes_clients(place)]


# The logical queues of which this node owns a part.
#
# Theory of operation
#
# The catalogue stores the topology of each logical queue: its replicas, their states and shares,
# the assignment slots and the scaling settings. The leader changes it. Each node follows it with
# one cheap question every 0.25 s: has the version changed? If it has, `poll` reads all topologies
# and fits each queue of this node to its topology:
#
# - A logical queue (`_fit_alias`): its members get the change, and its own messages are handed over
#   to replicas by an `AliasForwarder`.
# - A replica (`_fit_replica`): it learns its assignment slots and its rate limit. Messages whose
# slot
#   is assigned elsewhere now are handed over too.
# - A queue that has no replicas any more becomes a plain queue again.
#
# On a node of a machine, `poll` also brings the replicas here that are assigned to the machine.
#
# Invariant: before a queue accepts messages of an assignment slot, it has read the dedup ids that
# other replicas stored (`_learns`). Otherwise a repeated message would be stored again.
#
# Failures: if the store does not answer, the next poll repeats the work. If only one queue cannot
# be fitted, the others are, and that one is tried again. A lapsed lease or a lost notification
# changes no version; a node that owns logical queues therefore reads the topologies at least once a
# second.


log = logging.getLogger(__name__)

_POLL_S = 0.25
_IDLE_POLL_S = 2.0
# What changes without a new version, such as a lapsed lease, is noticed after this many polls.
_POLLS_PER_CHECK = 4


class Topologies:
    """The topologies that a node knows, by the id of their logical queue."""

    def __init__(self) -> None:
        self.known: dict[int, Topology] = {}

    def of(self, info: QueueInfo) -> Topology | None:
        """Return the topology of the logical queue that `info` belongs to, if known."""
        return self.known.get(info.alias_id or info.queue_id)

    def with_both(self, queue_id: int, other_id: int) -> Topology | None:
        """Return the topology to which both queues belong; None if there is none."""
        for topology in self.known.values():
            ids = {topology.queue_id, *(place.queue_id for place in topology.replicas)}
            if queue_id in ids and other_id in ids and queue_id != other_id:
                return topology
        return None


class LogicalQueues:
    """A node's part in logical queues: follows their topologies, and fits its own queues."""

    def __init__(
        self,
        context: NodeContext,
        ownership: Ownership,
        topologies: Topologies,
        transfer: SegmentTransfer,
        clients: NodeClients,
    ) -> None:
        self._context = context
        self._ownership = ownership
        self._topologies = topologies
        self._transfer = transfer
        self._clients = clients
        self._version = -1
        # Whether a queue of this node has not been fitted to `_version` yet.
        self._is_behind = False
        self._aliases: dict[Replica, LogicalQueueState] = {}
        self._hand_overs: dict[Replica, AliasForwarder] = {}
        self._bringing: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        # Queues of this node that belong to a logical queue.
        self._parts: set[Replica] = set()
        self._has_part = asyncio.Event()

    async def watch_forever(self) -> None:
        looks = 0
        while True:
            await self._pause()
            looks += 1
            try:
                await self.poll(again=looks % _POLLS_PER_CHECK == 0 and bool(self._aliases))
            except TidegateError as failure:
                log.warning("could not look for changes of logical queues: %s", failure)
            except Exception:
                log.exception("a bug while looking for changes of logical queues")

    async def _pause(self) -> None:
        """Wait until the next poll; longer if the node has no part in a logical queue."""
        if self._parts or self._context.identity.machine_id is not None:
            await asyncio.sleep(_POLL_S)
            return
        self._has_part.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_part.wait(), _IDLE_POLL_S)

    async def poll(self, *, again: bool = False) -> None:
        """Read the topologies if the version has changed; with `again` in any case."""
        async with self._looking:
            version = await self._context.store.topology_version()
            if version != self._version or again or self._is_behind:
                found = await self._context.store.topologies()
                self._topologies.known = {topology.queue_id: topology for topology in found}
                self._version = version
                self._is_behind = False
                for replica in list(self._ownership.replicas.values()):
                    try:
                        await self._fit(replica)
                    except TidegateError as failure:
                        # Its store may not answer. The other queues must not wait for it.
                        log.warning("%s is not fitted yet: %s", replica.info.name, failure)
                        self._is_behind = True
            await self._bring_assigned()

    async def close(self) -> None:
        self._parts.clear()
        ending: list[asyncio.Task[None]] = [each.end() for each in self._hand_overs.values()]
        await cancel_and_wait([*ending, *self._bringing])

    # Queries

    async def all_of_them(self) -> tuple[int, list[Topology]]:
        """Return the version and the topologies of all logical queues."""
        await self.poll()
        return self._version, list(self._topologies.known.values())

    def logical_queue(self, replica: Replica) -> LogicalQueueState | None:
        """Return the state of a logical queue that this node owns; None if not known."""
        return self._aliases.get(replica)

    async def alias(self, replica: Replica) -> LogicalQueueState:
        """Return the state of a logical queue that this node owns.

        Raises `NotOwner` if the queue has no replicas.
        """
        if replica not in self._aliases:
            await self.poll(again=True)
        alias = self._aliases.get(replica)
        if alias is None:
            raise NotOwner(f"queue {replica.info.title} has no replicas: look it up again")
        return alias

    # Queues come and go

    async def owned(self, replica: Replica) -> None:
        """Fit a queue that this node has claimed, before it is served."""
        info = replica.info
        if info.elastic or info.alias_id:
            queue_id = info.alias_id or info.queue_id
            topology = await self._context.store.topology(queue_id)
            if topology is not None:
                self._topologies.known[queue_id] = topology
            await self._fit(replica)

    def disowned(self, replica: Replica) -> None:
        """End this node's part in a queue that it no longer owns."""
        self._parts.discard(replica)
        alias = self._aliases.pop(replica, None)
        if alias is not None:
            alias.end()
        hand_over = self._hand_overs.pop(replica, None)
        if hand_over is not None:
            hand_over.end()

    def forget_session(self, session: Session) -> None:
        for alias in self._aliases.values():
            alias.remove_connection(session)

    async def _fit(self, replica: Replica) -> None:
        """Fit a queue of this node to its topology."""
        topology = self._topologies.of(replica.info)
        if replica.fenced:
            return
        if replica.info.alias_id or topology is not None:
            self._parts.add(replica)
            self._has_part.set()
        if replica.info.alias_id:
            await self._fit_replica(replica, topology)
        elif topology is not None:
            await self._fit_alias(replica, topology)
        elif replica in self._aliases or replica.info.elastic:
            if not await self._learns(replica):
                return
            self.disowned(replica)
            replica.apply_topology(None)

    async def _learns(self, replica: Replica) -> bool:
        """Read the dedup ids that other replicas have stored; False if the queue is lost meanwhile.

        Until they are known, the replica refuses messages of slots that are new to it.
        """
        await replica.intake.dedup.learn()
        return not replica.fenced

    async def _fit_alias(self, replica: Replica, topology: Topology) -> None:
        is_new = replica.context.assignments != topology.homes
        # Without assigned slots it stores all messages itself.
        if is_new and not topology.homes and not await self._learns(replica):
            return
        replica.apply_topology(topology)
        alias = self._aliases.get(replica)
        if alias is None:
            self._aliases[replica] = LogicalQueueState(topology, self._unacknowledged)
        else:
            alias.publish_change(topology)
        self.wake_hand_over(replica)

    async def _fit_replica(self, replica: Replica, topology: Topology | None) -> None:
        number, context = replica.info.number, replica.context
        homes = () if topology is None else topology.homes
        # Also the first time: other replicas may have stored ids of its slots before.
        takes_more = context.assignments is None or _is_home_to_more(
            homes, context.assignments, number
        )
        if takes_more and not await self._learns(replica):
            return
        if topology is None or topology.replica(number) is None:
            # The topology known here may be older than the replica.
            if await self._context.store.locate(replica.info.queue_id) is None:
                replica.deleted()
            return
        replica.apply_topology(topology)
        if context.queue.in_memory.has_homed or context.queue.spilled.count:
            # Some of its messages may be assigned to another replica by now.
            self.wake_hand_over(replica)

    def wake_hand_over(self, replica: Replica) -> None:
        """Wake the task that hands messages of `replica` over to other replicas."""
        if replica not in self._parts:
            return
        hand_over = self._hand_overs.get(replica)
        if hand_over is None:
            hand_over = self._hand_overs[replica] = AliasForwarder(
                self._context,
                replica,
                self._ownership,
                self._topologies,
                self._transfer,
                self._clients,
            )
        hand_over.wake()

    def _unacknowledged(self, queue_id: int, client_id: int, number: int) -> int | None:
        replica = self._ownership.replicas.get(queue_id)
        if replica is None:
            return None
        for consumer in replica.dispatch.holders.consumers:
            if consumer.target.client_id == client_id and consumer.consumer == number:
                return consumer.book.outstanding
        return None

    # Replicas assigned to this node's machine

    async def _bring_assigned(self) -> None:
        machine_id = self._context.identity.machine_id
        if machine_id is None or self._bringing or self._context.tasks.stopping:
            return
        for place in await self._context.store.assigned(machine_id):
            if place.queue_id not in self._ownership.replicas:
                task = asyncio.create_task(self._bring(place.queue_id))
                self._bringing.add(task)
                task.add_done_callback(self._bringing.discard)

    async def _bring(self, queue_id: int) -> None:
        try:
            await self._ownership.bring_here(queue_id)
        except TidegateError as failure:
            log.info("replica %s does not come yet: %s", queue_id, failure)


def _is_home_to_more(homes: Sequence[int], before: Sequence[int], number: int) -> bool:
    """Return whether the replica accepts slots that it did not accept before.

    Also if a slot is opened: until then other replicas may have stored messages of it.
    """
    if homes == before:
        return False
    return any(
        home == number and (index >= len(before) or before[index] != number)
        for index, home in enumerate(homes)
    )


# Hands the messages of a logical queue over to its replicas.
#
# Consumers take nothing from the logical queue itself. When messages are put to it, or when its
# topology has changed, the owners of the replicas pull them in batches, by their shares. Only whole
# segments move, so a replica may get more than its share; the replica that is owed most is served
# next.
#
# Messages with a group or a receiver go only to their assigned replica. A replica hands over
# messages in the same way if their slot has moved.


_ANSWER_S = 15.0
_BACKOFF_S = 0.25
_AWAY_S = 1.0


class AliasForwarder:
    """Hands over the messages of one queue that this node owns."""

    def __init__(
        self,
        context: NodeContext,
        replica: Replica,
        ownership: Ownership,
        topologies: Topologies,
        transfer: SegmentTransfer,
        clients: NodeClients,
    ) -> None:
        self._identity = context.identity
        self._replica = replica
        self._ownership = ownership
        self._topologies = topologies
        self._transfer = transfer
        self._clients = clients
        self._woken = asyncio.Event()
        # Replica number -> messages that it got beyond its share; negative: it is owed some.
        self._ahead: dict[int, float] = {}
        # Numbers of replicas that did not answer; the others get their share for a while.
        self._away: set[int] = set()
        self._task = asyncio.create_task(self._run(), name="hand-over")

    def wake(self) -> None:
        """Run again: messages came, or a replica that may take some."""
        self._woken.set()

    def end(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while not self._replica.fenced:
            await self._woken.wait()
            self._woken.clear()
            try:
                while await self._step():
                    pass
            except TidegateError as failure:
                log.info("%s cannot be handed over yet: %s", self._name, failure)
                await asyncio.sleep(_BACKOFF_S)
                self._woken.set()
            except Exception:
                # If this loop ended, messages would stay where no consumer reads them.
                log.exception("a bug while handing %s over", self._name)
                await asyncio.sleep(_BACKOFF_S)

    async def _step(self) -> bool:
        """Have replicas take one batch each; return whether anything moved."""
        topology = self._topologies.of(self._replica.info)
        queue = self._replica.context.queue
        if topology is None or self._replica.fenced:
            return False
        if not queue.lanes.head_count and not queue.lanes.held_count and not queue.spilled.count:
            return False
        await split_segments(self._replica, topology)
        went = 0
        homes_wanted = self._homes_wanted(topology)
        for place in homes_wanted:
            went += await self._offer(place, MOVE_COUNT_MAX, homed=True)
        if self._replica.info.queue_id == topology.queue_id:
            went += await self._share(topology)
        if homes_wanted and not went:
            # A message before them is still leased, and its end does not wake this task.
            asyncio.get_running_loop().call_later(_AWAY_S, self.wake)
        # Reading messages from the store may have brought assigned ones into memory.
        return went > 0 or self._homes_wanted(topology) != homes_wanted

    async def _share(self, topology: Topology) -> int:
        """Have one replica take a batch, by the shares of the reachable ones."""
        places = {p.number: p for p in reachable(topology.replicas) if p.number not in self._away}
        shares = {number: place.share for number, place in places.items() if place.share > 0}
        if not shares:
            shares = dict.fromkeys(places, 1.0)
        whole = sum(shares.values())
        # The replica that is owed most is first; the next one only if that one takes nothing.
        for number in sorted(shares, key=lambda n: (self._ahead.get(n, 0.0), -shares[n], n)):
            part_of_it = len(self._replica.context.queue) * shares[number] / whole
            went = await self._offer(places[number], max(int(part_of_it), 1))
            if went:
                self._ahead = {
                    n: self._ahead.get(n, 0.0) - went * share / whole + went * (n == number)
                    for n, share in shares.items()
                }
                return went
        return 0

    async def _offer(self, place: ReplicaInfo, count: int, *, homed: bool = False) -> int:
        """Have a replica take messages; return how many.

        0 if it cannot be reached; it is then left out for a while.
        """
        try:
            return await self._pull_to(place, count, homed)
        except RetryLater as failure:
            log.info("%s: replica %s takes nothing: %s", self._name, place.number, failure)
            self._away.add(place.number)
            asyncio.get_running_loop().call_later(_AWAY_S, self._try_again, place.number)
            return 0

    def _try_again(self, number: int) -> None:
        # No clock is compared: the timer may fire a millisecond early, and it fires once.
        self._away.discard(number)
        self.wake()

    @property
    def _name(self) -> str:
        return self._replica.info.name

    def _homes_wanted(self, topology: Topology) -> list[ReplicaInfo]:
        """Return the other replicas to which messages here are assigned."""
        replica = self._replica
        if not topology.homes or not replica.context.queue.in_memory.has_homed:
            return []
        here = replica.info.number
        numbers = {
            abs(topology.homes[index])
            for segment in replica.context.queue.segments()
            for index in segment_assignments(segment)
        }
        places = [topology.replica(number) for number in sorted(numbers - {here, *self._away})]
        return [place for place in places if place is not None and place.address is not None]

    async def _pull_to(self, place: ReplicaInfo, count: int, homed: bool) -> int:
        """Have the owner of a replica take about `count` messages; return how many."""
        source_id = self._replica.info.queue_id
        taker = self._ownership.replicas.get(place.queue_id)
        if taker is not None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await self._transfer.pull(taker, source_id, count, homed=homed)
            except TimeoutError:
                # The transfer itself continues; the other replicas need not wait for it.
                raise Unavailable(f"the store of replica {place.number} does not answer") from None
        if place.address is None or place.address == self._identity.address:
            raise Unavailable(f"replica {place.number} is on its way")
        pull = Pull(place.queue_id, source_id, count, homed)
        answer = await self._clients.request(place.address, pull, _ANSWER_S)
        assert isinstance(answer, PullResponse)
        return answer.count
