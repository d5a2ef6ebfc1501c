"""Ownership: which queues this node owns, and how queues come and go.

The store records which node owns a queue. A node claims a queue that no live node owns, loads it
and serves it. Each queue is looked up once at a time, however many requests ask for it. While a
queue leaves this node, requests for it wait until its new owner is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from tidegate.broker.replica import Replica
from tidegate.core.errors import (
    InvalidValue,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    StaleEpoch,
    TidegateError,
    Unavailable,
)
from tidegate.core.topology import STORE_SHIFT

if TYPE_CHECKING:
    from tidegate.broker.node import Node


log = logging.getLogger(__name__)

_FINISH_MOVES_S = 2.0


class Ownership:
    """The queues of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.replicas: dict[int, Replica] = {}
        # Those of `replicas` whose policy has a prefetch goal; read often by the prefetch loop.
        self.with_prefetch_goal: dict[int, Replica] = {}
        self._routing: dict[int, asyncio.Task[Replica | str]] = {}
        # Queues that are moving to another node; requests for them wait for the event.
        self._handing_over: dict[int, asyncio.Event] = {}

    @property
    def searches(self) -> Iterable[asyncio.Task[Replica | str]]:
        """Lookups that are running; the node cancels them when it stops."""
        return self._routing.values()

    async def adopt(self) -> None:
        """Claim the queues that no live node owns."""
        with contextlib.suppress(TidegateError):
            for queue_id in await self._node.store.orphans():
                with contextlib.suppress(TidegateError):
                    await self.route(queue_id)

    async def route(self, queue_id: int) -> Replica | str:
        """Return the replica if the queue is or becomes this node's, else the owner's address.

        Raises `QueueNotExisting` if there is no such queue, and `Unavailable` if it is being
        claimed by another node.
        """
        replica = self.replicas.get(queue_id)
        if replica is not None:
            return replica
        if not -(2**31) <= queue_id < 2**31:
            raise QueueNotExisting(f"no queue {queue_id}")
        task = self._routing.get(queue_id)
        if task is None:
            task = self._routing[queue_id] = asyncio.create_task(self._find(queue_id))
            task.add_done_callback(lambda _: self._routing.pop(queue_id, None))
        return await asyncio.shield(task)

    async def settle(self, queue_id: int) -> None:
        """Claim a new queue, unless another node does.

        Errors that ask for a retry are ignored: the queue exists, and its creation must not be
        repeated.
        """
        with contextlib.suppress(RetryLater):
            await self.route(queue_id)

    async def _find(self, queue_id: int) -> Replica | str:
        leaving = self._handing_over.get(queue_id)
        if leaving is not None:
            await leaving.wait()
        location = await self._node.store.locate(queue_id)
        if location is None:
            raise QueueNotExisting(f"no queue {queue_id}")
        if location.alive and location.owner != self._node.member_id:
            assert location.address is not None
            return location.address
        if self._node.stopping:
            raise Unavailable("this node is going away")
        replica = self.replicas.get(queue_id)
        if replica is not None:
            return replica
        claimed_at = self._node.clock.monotonic()
        claim = await self._node.store.claim(queue_id, self._node.member_id)
        if claim is None:
            raise Unavailable(f"queue {location.queue.title} is being taken over: try again")
        replica = self._node.replica_of(location.queue, claim.epoch)
        if location.queue.alias_id or location.queue.elastic:
            await self._finish_moves(replica)
        await replica.load()
        await self._node.aliases.owned(replica)
        if replica.fenced:
            raise StaleEpoch(f"queue {location.queue.title} was taken over")
        self.replicas[queue_id] = replica
        self.note_goal(replica)
        if self._node.recording is not None:
            self._node.recording.owned(
                replica,
                from_member=location.owner,
                duration_s=self._node.clock.monotonic() - claimed_at,
            )
        log.info("owns queue", extra={"queue": location.queue.name, "epoch": claim.epoch})
        return replica

    async def _finish_moves(self, replica: Replica) -> None:
        """Finish the transfers that a former owner of the queue has begun.

        Afterwards each message is either in this queue or in the other one.
        """
        store = self._node.store
        try:
            while await store.finish_moves(replica.info.queue_id, replica.epoch):
                pass  # There may be more
        except RetryLater as failure:
            # The target's store does not answer, or one of the two has no room to record the
            # result. Until then the messages are in neither queue.
            log.warning("moves from %s are not finished yet: %s", replica.info.name, failure)
            replica.outgoing.has_open_moves = True
            self._node.do_soon(self._finish_moves_later(replica))

    async def _finish_moves_later(self, replica: Replica) -> None:
        while not replica.fenced:
            await asyncio.sleep(_FINISH_MOVES_S)
            with contextlib.suppress(RetryLater):
                if await self._node.store.finish_moves(replica.info.queue_id, replica.epoch):
                    # Messages have come back. Loading the queue again finds them and finishes the
                    # remaining transfers.
                    replica.fence(StaleEpoch(f"queue {replica.info.title} is loaded anew"))
                else:
                    replica.outgoing.has_open_moves = False
                return

    def remove(self, replica: Replica) -> None:
        """Remove a replica that this node serves no more."""
        if self.replicas.get(replica.info.queue_id) is replica:
            del self.replicas[replica.info.queue_id]
            self.note_goal(replica)
            log.info("no longer owns queue", extra={"queue": replica.info.name})

    def note_goal(self, replica: Replica) -> None:
        """Update `with_prefetch_goal` after a replica came, left or changed its policy."""
        queue_id = replica.info.queue_id
        if self.replicas.get(queue_id) is replica and replica.context.policy.prefetch is not None:
            self.with_prefetch_goal[queue_id] = replica
        elif self.with_prefetch_goal.get(queue_id) is replica:
            del self.with_prefetch_goal[queue_id]

    async def bring_here(self, queue_id: int) -> Replica:
        """Own a queue, asking its present owner for it if needed.

        Raises `Unavailable` if the queue does not come.
        """
        found = await self.route(queue_id)
        if isinstance(found, Replica):
            return found
        await self._node.node_clients.ask_for(found, queue_id, self._node.member_id)
        searching = self._routing.get(queue_id)
        if searching is not None:
            # A lookup that began before the queue was released may still find the old owner.
            await asyncio.wait([searching])
        found = await self.route(queue_id)
        if not isinstance(found, Replica):
            raise Unavailable(f"queue {queue_id} did not come: try again")
        return found

    async def delete_anywhere(self, queue_id: int) -> None:
        """Delete a queue here or at its owner."""
        found = await self.route(queue_id)
        if isinstance(found, Replica):
            await self.delete_queue(found)
        else:
            await self._node.node_clients.delete_queue(found, queue_id)

    async def transfer_ownership(self, replica: Replica, member_id: int) -> None:
        """Give a queue to another node after everything accepted is on disk.

        Raises `InvalidValue` if that node is not alive, or if the queue is transient and not empty.
        """
        if member_id == self._node.member_id:
            return
        alive = {m.member_id: m for m in await self._node.store.members() if m.alive}
        if member_id not in alive:
            raise InvalidValue(f"no living member {member_id}; there are {sorted(alive)}")
        if not replica.info.durable and not replica.is_empty:
            raise InvalidValue(
                f"queue {replica.info.title} is transient: what is in it cannot move"
            )
        async with self._taking_out(replica):
            try:
                await replica.quiesce()
                released = await self._node.store.release(
                    replica.info.queue_id, replica.epoch, member_id
                )
            finally:
                replica.fence(NotOwner(f"queue {replica.info.title} moved to member {member_id}"))
        if not released:
            raise StaleEpoch(f"queue {replica.info.title} had a new owner already")

    async def delete_queue(self, replica: Replica) -> None:
        async with self._taking_out(replica):
            try:
                deleted = await self._node.store.delete_queue(replica.info.queue_id)
            except TidegateError:
                replica.fence(StaleEpoch(f"queue {replica.info.title} may be deleted: ask again"))
                raise
            replica.deleted()
        if not deleted:
            raise QueueNotExisting(f"no queue {replica.info.title}")

    @contextlib.asynccontextmanager
    async def _taking_out(self, replica: Replica) -> AsyncIterator[None]:
        """Remove a replica from the table; requests wait until its new owner is known."""
        queue_id = replica.info.queue_id
        if queue_id in self._handing_over or self.replicas.get(queue_id) is not replica:
            raise NotOwner(f"queue {replica.info.title} is leaving already: ask again")
        gone = self._handing_over[queue_id] = asyncio.Event()
        del self.replicas[queue_id]
        self.note_goal(replica)
        try:
            yield
        finally:
            del self._handing_over[queue_id]
            gone.set()


# The node's lease: joining, renewing and leaving the membership table.
#
# A node renews its lease three times per lease. If it cannot renew, it stops delivering when the
# lease ends, by its own clock: other nodes may then claim its queues. Stores beside the first one
# have leases of their own. For a queue in such a store both leases must be valid.


class NodeLease:
    """This node's entry in the membership table and its lease."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.member_id = 0
        self._alive_until = 0.0
        # Whether the store answered when the lease was last to be renewed.
        self._store_answers = True
        # Of queues in stores beside the first: the membership epoch there at the time of the claim.
        self._standings: dict[int, int | None] = {}
        self._adopting: asyncio.Task[None] | None = None
        # Whether the machine that we are on is still known to have the member that we were.
        self._machine_is_behind = False

    async def join(self) -> None:
        node = self._node
        asked_at = node.clock.monotonic()
        self.member_id = await node.store.join(node.name, node.address, node.limits.lease_s)
        self._alive_until = asked_at + node.limits.lease_s
        self._machine_is_behind = node.machine_id is not None
        await self._tell_machine()

    async def _tell_machine(self) -> None:
        """Store this node's new member id with its machine.

        The leader soon gives up a machine whose node is not a living member.
        """
        node = self._node
        if not self._machine_is_behind or node.machine_id is None:
            return
        if not await node.store.machine_joined(node.machine_id, self.member_id):
            # The process that started this node asks for the machine too, and ends the node.
            log.warning("nobody wants machine %d any more", node.machine_id)
        self._machine_is_behind = False

    async def leave(self) -> None:
        try:
            async with asyncio.timeout(self._node.limits.lease_s):
                await self._node.store.leave(self.member_id)
        except (TimeoutError, TidegateError) as failure:
            log.warning("left without saying so: %s", failure or "no answer")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Tasks that are running; the node cancels them when it stops."""
        return [] if self._adopting is None else [self._adopting]

    # State

    def may_deliver(self) -> bool:
        """Return whether the lease is still valid; checked before every delivery.

        A paused process may resume after its lease has expired.
        """
        node = self._node
        return node.clock.monotonic() < self._alive_until and not node.stopping

    def may_deliver_from(self, queue_id: int) -> Callable[[], bool]:
        """Return the check for deliveries from a queue.

        For a queue in another store, the lease there must be the one under which it was claimed.
        """
        if not queue_id >> STORE_SHIFT:
            return self.may_deliver
        store = self._node.store
        joined = self._standings[queue_id] = store.membership_epoch(queue_id)

        def may_deliver() -> bool:
            stands = joined is not None and store.membership_epoch(queue_id) == joined
            return stands and self.may_deliver()

        return may_deliver

    def why_not_ready(self) -> str | None:
        """Return why clients should not be sent to this node, or None if it is ready."""
        if self._node.clock.monotonic() >= self._alive_until:
            return "the node's lease has lapsed: it could not be renewed in the store"
        # This text is shown without a login. The log has the details.
        return None if self._store_answers else "the store does not answer"

    # Renewal

    async def renew_forever(self) -> None:
        """Renew the lease every third of it: two renewals may fail before it expires."""
        while True:
            await asyncio.sleep(self._node.limits.lease_s / 3)
            try:
                await self._renew()
            except TidegateError as failure:
                self._store_answers = False
                log.warning("could not renew the lease: %s", failure)
            except Exception:
                # If this loop ended, the node would confirm puts but never deliver again.
                log.exception("a bug while renewing the lease")

    async def _renew(self) -> None:
        node = self._node
        asked_at = node.clock.monotonic()
        renewed = await node.store.renew(self.member_id, node.limits.lease_s)
        self._store_answers = True
        if renewed:
            self._alive_until = asked_at + node.limits.lease_s
            # The store may have gone away between our coming back and this.
            await self._tell_machine()
        else:
            await self._start_over()
        if node.machine_id is None and (self._adopting is None or self._adopting.done()):
            # As a task of its own: loading a large queue takes longer than a lease lasts.
            self._adopting = asyncio.create_task(node.ownership.adopt())
        self._fence_the_lost()
        await node.sessions.leave_the_dead()

    def _fence_the_lost(self) -> None:
        """Fence queues in other stores in which this node has lost its lease."""
        node = self._node
        for queue_id, joined in list(self._standings.items()):
            replica = node.replicas.get(queue_id)
            if replica is not None and node.store.membership_epoch(queue_id) not in (None, joined):
                replica.fence(StaleEpoch("this node lost its lease in the queue's store"))

    async def _start_over(self) -> None:
        """Drop all queues and join again after this node was declared dead."""
        node = self._node
        log.error("this node was declared dead and starts over")
        for replica in list(node.replicas.values()):
            replica.fence(StaleEpoch("this node lost its lease"))
        await self.join()
        if node.recording is not None:
            node.recording.event("rejoin", str(self.member_id), {"address": node.address})
