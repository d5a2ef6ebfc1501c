"""The node's lease: joining, renewing and leaving the membership table.

A node renews its lease three times per lease. If it cannot renew, it stops delivering when the
lease ends, by its own clock: other nodes may then claim its queues. Stores beside the first one
have leases of their own. For a queue in such a store both leases must be valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.replication import STORE_SHIFT

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)


class Membership:
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
        joined = self._standings[queue_id] = store.standing(queue_id)

        def may_deliver() -> bool:
            stands = joined is not None and store.standing(queue_id) == joined
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
            if replica is not None and node.store.standing(queue_id) not in (None, joined):
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
