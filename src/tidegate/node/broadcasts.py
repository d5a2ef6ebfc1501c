"""One message into several queues: all or none, whoever owns them.

All-or-none is one transaction, fenced by the epochs of all queues, so one node must own
them all: queues that are put to together are brought together first. It is the owner of the
first queue that brings the others; were it whoever is asked, two nodes that are asked at once
would pull at the same queues for ever.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tidegate.core.errors import (
    InvalidValue,
    QueueNotExisting,
    StaleEpoch,
    TidegateError,
    Unavailable,
)
from tidegate.core.ports import Broadcast
from tidegate.node.replica import Replica
from tidegate.wire.packets import PutToQueues

if TYPE_CHECKING:
    from tidegate.node.server import Node

_TRIES = 5


class Broadcasts:
    """Puts to several queues of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # One at a time: two that bring the same queues together would pull at them.
        self._lock = asyncio.Lock()
        # A client that was cut off asks again: it must meet its first question, not a second one.
        self._under_way: dict[tuple[int, int], asyncio.Task[list[int] | str]] = {}

    async def put(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        """The queues that took the message; or the address of the node that should be asked."""
        key = (packet.producer, packet.batch)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._put(packet, payload, sender))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _put(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        async with self._lock:
            for attempt in range(_TRIES):
                try:
                    elsewhere = await self._coordinator(packet)
                    if elsewhere is not None:
                        return elsewhere
                    return await self._try(packet, payload, sender)
                except (StaleEpoch, Unavailable):
                    if attempt == _TRIES - 1:
                        raise
                    await asyncio.sleep(0.05 * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _coordinator(self, packet: PutToQueues) -> str | None:
        """Where the first of the queues lives; None: here."""
        for queue_id in sorted(packet.queue_ids):
            try:
                found = await self._node.route(queue_id)
            except QueueNotExisting:
                if not packet.partial:
                    raise
            else:
                return None if isinstance(found, Replica) else found
        return None

    async def _try(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int]:
        replicas: list[Replica] = []
        for queue_id in dict.fromkeys(packet.queue_ids):
            try:
                replicas.append(await self._node.bring_here(queue_id))
            except QueueNotExisting:
                if not packet.partial:
                    raise
        if not replicas:
            return []
        # A resend after a lost answer: those that have it need no second one.
        new = [r for r in replicas if not r.intake.knows(packet.producer, packet.batch)]
        if packet.partial:
            for replica in new:
                try:
                    await self._store([replica], packet, payload, sender)
                except TidegateError:
                    replicas.remove(replica)
        elif new:
            await self._store(new, packet, payload, sender)
        return [replica.info.queue_id for replica in replicas]

    async def _store(
        self, replicas: list[Replica], packet: PutToQueues, payload: bytes, sender: int
    ) -> None:
        durable = [replica for replica in replicas if replica.info.durable]
        if durable and len(durable) < len(replicas) and not packet.partial:
            raise InvalidValue("all or none cannot span durable and transient queues")
        message_ids = {replica: replica.intake.next_id() for replica in replicas}
        broadcast = Broadcast(
            targets=[(r.info.queue_id, r.epoch, message_ids[r]) for r in durable],
            priority=packet.priority,
            arrived_at=self._node.clock.wall(),
            sender=sender,
            receiver=packet.receiver,
            context=packet.context,
            attributes=packet.attributes,
            payload=payload,
            producer=packet.producer,
            batch=packet.batch,
        )
        try:
            if durable:
                await self._commit(broadcast)
        except BaseException:
            for replica in replicas:
                replica.intake.broadcast_refused(message_ids[replica])
            raise
        for replica in replicas:
            replica.intake.broadcast_stored(broadcast, message_ids[replica])

    async def _commit(self, broadcast: Broadcast) -> None:
        """Store it, with the same ids until the outcome is known: never twice."""
        queue_id, _, message_id = broadcast.targets[0]
        backoff_s = 0.05
        in_doubt = False
        while True:
            try:
                # All or none, so one of them tells.
                if in_doubt and await self._node.store.stored(queue_id, [message_id]):
                    return
                if not await self._node.store.broadcast(broadcast):
                    raise StaleEpoch("one of the queues has a new owner: try again")
                return
            except Unavailable:
                in_doubt = True
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, 1.0)
