"""Ownership: which queues this node owns, and how queues come and go.

The store records which node owns a queue. A node claims a queue that no live node owns, loads it
and serves it. Each queue is looked up once at a time, however many requests ask for it. While a
queue leaves this node, requests for it wait until its new owner is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

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
    from tidegate.broker.context import NodeContext
    from tidegate.broker.relay import NodeClients
    from tidegate.core.model import QueueInfo
    from tidegate.storage.writer import Writers


log = logging.getLogger(__name__)

_FINISH_MOVES_S = 2.0


class Ownership:
    """The queues of one node."""

    def __init__(
        self, context: NodeContext, lease: NodeLease, clients: NodeClients, writers: Writers
    ) -> None:
        self._context = context
        self._lease = lease
        self._clients = clients
        self._writers = writers
        self.replicas: dict[int, Replica] = {}
        # Those of `replicas` whose policy has a prefetch goal; read often by the prefetch loop.
        self.with_prefetch_goal: dict[int, Replica] = {}
        self._routing: dict[int, asyncio.Task[Replica | str]] = {}
        # Queues that are moving to another node; requests for them wait for the event.
        self._handing_over: dict[int, asyncio.Event] = {}
        # Of queues in stores beside the first: the membership epoch there at the time of the claim.
        self._standings: dict[int, int | None] = {}
        self._adopting: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that are running; the node cancels them when it stops."""
        adopting = [] if self._adopting is None else [self._adopting]
        return [*self._routing.values(), *adopting]

    async def lease_renewed(self) -> None:
        """Claim queues without an owner, and fence those whose own store has lost our lease."""
        is_adopting = self._adopting is not None and not self._adopting.done()
        if self._context.identity.machine_id is None and not is_adopting:
            # As a task of its own: loading a large queue takes longer than a lease lasts.
            self._adopting = asyncio.create_task(self.adopt())
        store = self._context.store
        for queue_id, joined in list(self._standings.items()):
            replica = self.replicas.get(queue_id)
            if replica is not None and store.membership_epoch(queue_id) not in (None, joined):
                replica.fence(StaleEpoch("this node lost its lease in the queue's store"))

    def lease_lost(self) -> None:
        """Drop all queues: other nodes may own them by now."""
        for replica in list(self.replicas.values()):
            replica.fence(StaleEpoch("this node lost its lease"))

    async def adopt(self) -> None:
        """Claim the queues that no live node owns."""
        with contextlib.suppress(TidegateError):
            for queue_id in await self._context.store.orphans():
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
        location = await self._context.store.locate(queue_id)
        if location is None:
            raise QueueNotExisting(f"no queue {queue_id}")
        if location.alive and location.owner != self._context.identity.member_id:
            assert location.address is not None
            return location.address
        if self._context.tasks.stopping:
            raise Unavailable("this node is going away")
        replica = self.replicas.get(queue_id)
        if replica is not None:
            return replica
        claimed_at = self._context.clock.monotonic()
        claim = await self._context.store.claim(queue_id, self._context.identity.member_id)
        if claim is None:
            raise Unavailable(f"queue {location.queue.title} is being taken over: try again")
        replica = self._create_replica(location.queue, claim.epoch)
        if location.queue.alias_id or location.queue.elastic:
            await self._finish_moves(replica)
        await replica.load()
        for fit in self._context.events.queue_claimed:
            await fit(replica)
        if replica.fenced:
            raise StaleEpoch(f"queue {location.queue.title} was taken over")
        self.replicas[queue_id] = replica
        self.note_goal(replica)
        duration_s = self._context.clock.monotonic() - claimed_at
        for listener in self._context.events.queue_served:
            listener(replica, location.owner, duration_s)
        log.info("owns queue", extra={"queue": location.queue.name, "epoch": claim.epoch})
        return replica

    def _create_replica(self, info: QueueInfo, epoch: int) -> Replica:
        """Create the replica of a queue that this node has claimed under `epoch`."""
        context = self._context
        return Replica(
            info,
            epoch,
            store=context.store,
            writer=self._writers.writer(info.queue_id),
            settler=self._writers.settler(info.queue_id),
            budget=context.budget,
            limits=context.limits,
            clock=context.clock,
            may_deliver=self._may_deliver_from(info.queue_id),
            events=context.events,
        )

    def _may_deliver_from(self, queue_id: int) -> Callable[[], bool]:
        """Return the check for deliveries from a queue.

        For a queue in another store, the lease there must be the one under which it was claimed.
        """
        lease = self._lease
        if not queue_id >> STORE_SHIFT:
            return lease.may_deliver
        store = self._context.store
        joined = self._standings[queue_id] = store.membership_epoch(queue_id)

        def may_deliver() -> bool:
            stands = joined is not None and store.membership_epoch(queue_id) == joined
            return stands and lease.may_deliver()

        return may_deliver

    async def _finish_moves(self, replica: Replica) -> None:
        """Finish the transfers that a former owner of the queue has begun.

        Afterwards each message is either in this queue or in the other one.
        """
        store = self._context.store
        try:
            while await store.finish_moves(replica.info.queue_id, replica.epoch):
                pass  # There may be more
        except RetryLater as failure:
            # The target's store does not answer, or one of the two has no room to record the
            # result. Until then the messages are in neither queue.
            log.warning("moves from %s are not finished yet: %s", replica.info.name, failure)
            replica.outgoing.has_open_moves = True
            self._context.tasks.do_soon(self._finish_moves_later(replica))

    async def _finish_moves_later(self, replica: Replica) -> None:
        while not replica.fenced:
            await asyncio.sleep(_FINISH_MOVES_S)
            with contextlib.suppress(RetryLater):
                if await self._context.store.finish_moves(replica.info.queue_id, replica.epoch):
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
        await self._clients.ask_for(found, queue_id, self._context.identity.member_id)
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
            await self._clients.delete_queue(found, queue_id)

    async def transfer_ownership(self, replica: Replica, member_id: int) -> None:
        """Give a queue to another node after everything accepted is on disk.

        Raises `InvalidValue` if that node is not alive, or if the queue is transient and not empty.
        """
        if member_id == self._context.identity.member_id:
            return
        alive = {m.member_id: m for m in await self._context.store.members() if m.alive}
        if member_id not in alive:
            raise InvalidValue(f"no living member {member_id}; there are {sorted(alive)}")
        if not replica.info.durable and not replica.is_empty:
            raise InvalidValue(
                f"queue {replica.info.title} is transient: what is in it cannot move"
            )
        async with self._taking_out(replica):
            try:
                await replica.quiesce()
                released = await self._context.store.release(
                    replica.info.queue_id, replica.epoch, member_id
                )
            finally:
                replica.fence(NotOwner(f"queue {replica.info.title} moved to member {member_id}"))
        if not released:
            raise StaleEpoch(f"queue {replica.info.title} had a new owner already")

    async def delete_queue(self, replica: Replica) -> None:
        async with self._taking_out(replica):
            try:
                deleted = await self._context.store.delete_queue(replica.info.queue_id)
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

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._clock = context.clock
        self._tasks = context.tasks
        self._identity = context.identity
        self._alive_until = 0.0
        self._has_joined = False
        # Whether the store answered when the lease was last to be renewed.
        self._store_answers = True
        # Whether the machine that we are on is still known to have the member that we were.
        self._machine_is_behind = False

    async def join(self) -> None:
        identity, limits = self._identity, self._context.limits
        asked_at = self._clock.monotonic()
        identity.member_id = await self._context.store.join(
            identity.name, identity.address, limits.lease_s
        )
        self._alive_until = asked_at + limits.lease_s
        self._machine_is_behind = identity.machine_id is not None
        await self._tell_machine()
        self._has_joined = True

    async def _tell_machine(self) -> None:
        """Store this node's new member id with its machine.

        The leader soon gives up a machine whose node is not a living member.
        """
        machine_id = self._identity.machine_id
        if not self._machine_is_behind or machine_id is None:
            return
        if not await self._context.store.machine_joined(machine_id, self._identity.member_id):
            # The process that started this node asks for the machine too, and ends the node.
            log.warning("nobody wants machine %d any more", machine_id)
        self._machine_is_behind = False

    async def leave(self) -> None:
        try:
            async with asyncio.timeout(self._context.limits.lease_s):
                await self._context.store.leave(self._identity.member_id)
        except (TimeoutError, TidegateError) as failure:
            log.warning("left without saying so: %s", failure or "no answer")

    # State

    def may_deliver(self) -> bool:
        """Return whether the lease is still valid; checked before every delivery.

        A paused process may resume after its lease has expired.
        """
        return self._clock.monotonic() < self._alive_until and not self._tasks.stopping

    def why_not_ready(self) -> str | None:
        """Return why clients should not be sent to this node, or None if it is ready."""
        if self._tasks.stopping:
            return "draining: the node is about to stop"
        if not self._has_joined:
            return "starting"
        if self._clock.monotonic() >= self._alive_until:
            return "the node's lease has lapsed: it could not be renewed in the store"
        # This text is shown without a login. The log has the details.
        return None if self._store_answers else "the store does not answer"

    # Renewal

    async def renew_forever(self) -> None:
        """Renew the lease every third of it: two renewals may fail before it expires."""
        while True:
            await asyncio.sleep(self._context.limits.lease_s / 3)
            try:
                await self.renew()
            except TidegateError as failure:
                self._store_answers = False
                log.warning("could not renew the lease: %s", failure)
            except Exception:
                # If this loop ended, the node would confirm puts but never deliver again.
                log.exception("a bug while renewing the lease")

    async def renew(self) -> None:
        """Renew the lease once, or join again if the node was declared dead."""
        limits = self._context.limits
        asked_at = self._clock.monotonic()
        renewed = await self._context.store.renew(self._identity.member_id, limits.lease_s)
        self._store_answers = True
        if renewed:
            self._alive_until = asked_at + limits.lease_s
            # The store may have gone away between our coming back and this.
            await self._tell_machine()
        else:
            await self._start_over()
        for listener in self._context.events.lease_renewed:
            await listener()

    async def _start_over(self) -> None:
        """Drop all queues and join again after this node was declared dead."""
        events = self._context.events
        log.error("this node was declared dead and starts over")
        for lost in events.lease_lost:
            lost()
        await self.join()
        for listener in events.rejoined:
            listener()
