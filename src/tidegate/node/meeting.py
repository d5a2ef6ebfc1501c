"""Brings queues to one node that are to be changed in one transaction.

The owner of most of the queues brings the others; on a tie, the owner of the first queue. If each
node that is asked did so, two nodes could take the queues from each other forever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from tidegate.core.errors import LimitReached, NotOwner, QueueNotExisting, StaleEpoch, Unavailable
from tidegate.node.replica import Replica

if TYPE_CHECKING:
    from tidegate.node.server import Node

_TRIES = 7
# How long a joint change waits for a full queue. It holds up the other queues meanwhile.
_ROOM_S = 30.0
_ROOM_POLL_S = 0.02

# Number of messages, and bytes of payload.
Need = tuple[int, int]

Result = TypeVar("Result")


class Meeting:
    """Brings queues of other nodes to this one for joint changes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # One at a time: two callers that bring the same queues would take them from each other.
        self._lock = asyncio.Lock()

    async def coordinator(self, queue_ids: Collection[int]) -> str | None:
        """Return the address of the node that owns most of the queues; None: this node."""
        replicas = self._node.replicas
        elsewhere = [queue_id for queue_id in queue_ids if queue_id not in replicas]
        if not elsewhere:
            return None
        owners = await self._node.store.owners(elsewhere)
        counts: dict[str | None, int] = {}
        for queue_id in sorted(queue_ids):
            address = None if queue_id in replicas else owners.get(queue_id)
            if address is not None and address != self._node.address:
                counts[address] = counts.get(address, 0) + 1
            elif queue_id in replicas:
                counts[None] = counts.get(None, 0) + 1
        return max(counts, key=lambda address: counts[address], default=None)

    async def gather(
        self, needs: dict[int, Need], key: tuple[int, int], *, partial: bool = False
    ) -> dict[int, Replica]:
        """Own all queues, with room for what each needs; return them by id.

        A queue that knows the batch `key` needs no room. Waits for `slow` queues up to 30 s, then
        raises `LimitReached`.
        """
        clock = self._node.clock
        deadline = clock.monotonic() + _ROOM_S
        while True:
            replicas = await self.bring(needs, partial=partial)
            full = [
                replica.info.title
                for queue_id, replica in replicas.items()
                if not replica.intake.knows(*key)
                and not replica.intake.room.lets_in(*needs[queue_id])
            ]
            if not full:
                return replicas
            if clock.monotonic() > deadline:
                raise LimitReached(f"queue {full[0]} is full, and stayed so for {_ROOM_S:g} s")
            await asyncio.sleep(_ROOM_POLL_S)

    async def bring(self, queue_ids: Iterable[int], *, partial: bool = False) -> dict[int, Replica]:
        """Own all queues; with `partial` leave out missing ones."""
        wanted = list(dict.fromkeys(queue_ids))
        found = self._all_here(wanted)
        if found is not None:
            return found
        async with self._lock:
            for queue_id in wanted:
                try:
                    await self._node.ownership.bring_here(queue_id)
                except QueueNotExisting:
                    if not partial:
                        raise
                    wanted = [each for each in wanted if each != queue_id]
        # Another node may have taken a queue while the next one was brought.
        found = self._all_here(wanted)
        if found is None:
            raise Unavailable("the queues are wanted by another node too: try again")
        return found

    def _all_here(self, queue_ids: list[int]) -> dict[int, Replica] | None:
        found = {}
        for queue_id in queue_ids:
            replica = self._node.replicas.get(queue_id)
            if replica is None or replica.fenced:
                return None
            found[queue_id] = replica
        return found


async def insist(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat `work` while queues change owners; at most `_TRIES` times."""
    for attempt in range(_TRIES):
        try:
            return await work()
        except (StaleEpoch, Unavailable, NotOwner):
            if attempt == _TRIES - 1:
                raise
            await asyncio.sleep(0.05 * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")
