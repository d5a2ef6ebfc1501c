"""A node's life among the others: it joins, renews its lease at a third of it, and leaves.

When it could not renew, it stops delivering at the deadline, whatever the store says later. Stores
beside the catalogue have leases of their own; for a queue in one of them both count.
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
    """What a node is to the others."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.member_id = 0
        self._alive_until = 0.0
        # Whether it did when the lease was to be renewed.
        self._store_answers = True
        # Of queues in stores beside the catalogue: how often we had joined when they became ours.
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
        """Say which member its node is now: a machine without a living one is soon given up."""
        node = self._node
        if not self._machine_is_behind or node.machine_id is None:
            return
        if not await node.store.machine_joined(node.machine_id, self.member_id):
            # Whoever has started us asks too, and ends us.
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
        """What is under way, for whoever ends the node."""
        return [] if self._adopting is None else [self._adopting]

    # Whether it is alive

    def may_deliver(self) -> bool:
        """A paused owner wakes up with its lease gone: look at the clock before every socket."""
        node = self._node
        return node.clock.monotonic() < self._alive_until and not node.stopping

    def may_deliver_from(self, queue_id: int) -> Callable[[], bool]:
        """For a queue in a store of its own, our standing there counts too."""
        if not queue_id >> STORE_SHIFT:
            return self.may_deliver
        store = self._node.store
        joined = self._standings[queue_id] = store.standing(queue_id)

        def may_deliver() -> bool:
            stands = joined is not None and store.standing(queue_id) == joined
            return stands and self.may_deliver()

        return may_deliver

    def why_not_ready(self) -> str | None:
        """Why nobody should be sent here now, or None. Renewals ask the store all the time."""
        if self._node.clock.monotonic() >= self._alive_until:
            return "the node's lease has lapsed: it could not be renewed in the store"
        # Strangers read this: what exactly the store said is in the log.
        return None if self._store_answers else "the store does not answer"

    # Staying alive

    async def renew_forever(self) -> None:
        """Renew at a third of the lease: two renewals may be lost before anyone takes over."""
        while True:
            await asyncio.sleep(self._node.limits.lease_s / 3)
            try:
                await self._renew()
            except TidegateError as failure:
                self._store_answers = False
                log.warning("could not renew the lease: %s", failure)
            except Exception:
                # Without this loop the node would go on confirming and never deliver again.
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
            # Beside the renewal: a large queue takes longer to load than a lease lasts.
            self._adopting = asyncio.create_task(node.ownership.adopt())
        self._fence_the_lost()
        await node.sessions.leave_the_dead()

    def _fence_the_lost(self) -> None:
        """A store beside the catalogue may have declared us dead: what it holds is others' then."""
        node = self._node
        for queue_id, joined in list(self._standings.items()):
            replica = node.replicas.get(queue_id)
            if replica is not None and node.store.standing(queue_id) not in (None, joined):
                replica.fence(StaleEpoch("this node lost its lease in the queue's store"))

    async def _start_over(self) -> None:
        """We were declared dead: everything we owned is somebody else's now."""
        node = self._node
        log.error("this node was declared dead and starts over")
        for replica in list(node.replicas.values()):
            replica.fence(StaleEpoch("this node lost its lease"))
        await self.join()
        if node.recording is not None:
            node.recording.event("rejoin", str(self.member_id), {"address": node.address})
