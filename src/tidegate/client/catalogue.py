"""Queues as a whole: made, found, declared, looked into, emptied, moved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from tidegate.client.calls import Calls
from tidegate.client.checks import check_count
from tidegate.client.message import Message, batches_of
from tidegate.client.reading import ReadHolder
from tidegate.core.errors import (
    ChangedMeanwhile,
    InvalidValue,
    NoActiveQueues,
    NoQueues,
    QueueNameNotUnique,
)
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.core.users import Grant
from tidegate.telemetry.numbers import ClusterNumbers
from tidegate.wire.packets.browsing import (
    AcknowledgeIds,
    AcknowledgeIdsResponse,
    GetMessages,
    GetMessagesResponse,
    GetWaitingIds,
    GetWaitingIdsResponse,
)
from tidegate.wire.packets.cluster import GetMembers, GetMembersResponse, Member, SetOwner
from tidegate.wire.packets.dead_letters import Redrive, RedriveResponse
from tidegate.wire.packets.live_numbers import Stats
from tidegate.wire.packets.login import GetRights, GetRightsResponse
from tidegate.wire.packets.prefetch import SetConsumerPrefetch
from tidegate.wire.packets.queues import (
    CreateQueue,
    CreateQueueResponse,
    DeleteQueue,
    GetActiveQueues,
    GetActiveQueuesResponse,
    GetQueues,
    GetQueuesResponse,
    PurgeQueue,
    PurgeQueueResponse,
    SetPolicy,
)

# Somebody else may change a policy at the same time, but not so often.
_TRIES_MAX = 8


class WaitingIds(NamedTuple):
    """Messages that wait, as ranges [first, last] of ids."""

    ranges: list[tuple[int, int]]
    # Every id that was given out so far is below this one.
    below_id: int


class CatalogueCalls(Calls):
    """The part of a client that is about queues, and not about messages."""

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
        ephemeral: bool = False,
    ) -> QueueInfo:
        """Create a queue. A transient one (`durable=False`) lives in memory only.

        One that is `ephemeral` is deleted when this connection ends, however it ends.
        """
        packet = CreateQueue(name, durable, policy or QueuePolicy(), ephemeral)
        try:
            answered = await self._lifeline.ask(packet, repeatable=exist_ok)
        except QueueNameNotUnique:
            if not exist_ok:
                raise
            return await self.queue(name)
        assert isinstance(answered.packet, CreateQueueResponse)
        return self.note_queue(answered.packet.queue)

    async def delete_queue(self, queue: str | int) -> None:
        """Delete a queue and everything in it."""
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(DeleteQueue(queue_id), repeatable=False)
        self._forget_queue(queue_id)

    def _forget_queue(self, queue_id: int) -> None:
        self._queue_ids = {n: q for n, q in self._queue_ids.items() if q != queue_id}

    async def queues(self) -> list[QueueInfo]:
        """All queues; an empty list when there are none."""
        try:
            packet = (await self._lifeline.ask(GetQueues())).packet
        except NoQueues:
            return []
        assert isinstance(packet, GetQueuesResponse)
        return packet.queues

    async def active_queues(self) -> list[QueueInfo]:
        """Queues that hold a message for this client."""
        try:
            packet = (await self._lifeline.ask(GetActiveQueues())).packet
        except NoActiveQueues:
            return []
        assert isinstance(packet, GetActiveQueuesResponse)
        return packet.queues

    async def set_policy(
        self, queue: str | int, *, before: QueuePolicy | None = None, **changes: Any
    ) -> QueuePolicy:
        """Change fields of a queue's `QueuePolicy`; all others stay, also what is set meanwhile.

        With `before` only if the policy has been this until now: ChangedMeanwhile says that
        somebody else was first, and nothing is done.
        """
        for left in reversed(range(_TRIES_MAX)):
            info = await self.queue(queue)
            known = before or info.policy
            policy = _changed(known, changes)
            try:
                await self._lifeline.ask(SetPolicy(info.queue_id, policy, known))
                return policy
            except ChangedMeanwhile:
                if before is not None or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def pause(self, queue: str | int) -> None:
        """Deliver nothing from a queue until it is resumed; puts go on."""
        await self.set_policy(queue, paused=True)

    async def resume(self, queue: str | int) -> None:
        await self.set_policy(queue, paused=False)

    async def redrive(
        self,
        queue: str | int,
        *,
        to: str | None = None,
        message_ids: Iterable[int] | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Send dead letters back to where they died, or to another queue; how many went."""
        packet = Redrive(
            await self.queue_id(queue),
            to,
            None if message_ids is None else list(message_ids),
            reason,
            limit,
        )
        answered = await self._lifeline.ask(packet, repeatable=False)
        assert isinstance(answered.packet, RedriveResponse)
        return answered.packet.count

    async def browse(
        self,
        queue: str | int,
        *,
        limit: int = 100,
        first_id: int = 0,
        last_id: int | None = None,
    ) -> list[Message]:
        """Look at waiting messages without taking them: the first, or those with these ids.

        They come in order of their ids. Fewer than `limit` say that there were no more.
        """
        check_count("limit", limit)
        queue_id = await self.queue_id(queue)
        holder = ReadHolder(self._lifeline, str(queue), 0)
        found: list[Message] = []
        while True:
            packet = GetMessages(queue_id, limit - len(found), first_id, last_id)
            answered = await self._lifeline.ask(packet)
            page = answered.packet
            assert isinstance(page, GetMessagesResponse)
            batches = batches_of(page.runs, answered.body, holder, self._lifeline.generation)
            found += [message for batch in batches for message in batch]
            if page.more_from is None or len(found) >= limit:
                return found
            first_id = page.more_from

    async def waiting_ids(
        self, queue: str | int, *, limit: int, last_id: int | None = None
    ) -> WaitingIds:
        """Which messages for anyone wait, the lowest ids first; of a paused queue none.

        There may be more than are listed, even within the limit; there are none if none is.
        """
        check_count("limit", limit)
        packet = GetWaitingIds(await self.queue_id(queue), limit, last_id)
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, GetWaitingIdsResponse)
        return WaitingIds(answered.packet.ranges, answered.packet.below_id)

    async def ack_ids(self, queue: str | int, ranges: Iterable[tuple[int, int]]) -> int:
        """Acknowledge waiting messages by their ids, each range [first, last]; how many there were.

        For who has browsed and processed them. What a consumer holds stays with it.
        """
        packet = AcknowledgeIds(await self.queue_id(queue), list(ranges))
        # Ids are not given out twice: those of a lost answer are simply no longer there.
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, AcknowledgeIdsResponse)
        return answered.packet.count

    async def purge(self, queue: str | int) -> int:
        """Drop every waiting message; how many there were."""
        packet = (await self._lifeline.ask(PurgeQueue(await self.queue_id(queue)))).packet
        assert isinstance(packet, PurgeQueueResponse)
        return packet.count

    # Looking and steering

    async def stats(
        self, queue: str | int | None = None, *, steps: int = 1, brief: bool = False
    ) -> ClusterNumbers:
        """Live numbers of all nodes, or of one queue.

        With `steps`, so many of the last control steps of consumers whose prefetch is steered.
        `brief` leaves out consumers and durations: for who looks at all queues all the time.
        """
        queue_id = None if queue is None else await self.queue_id(queue)
        asked = Stats(queue_id, steps=steps, consumers=not brief, durations=not brief)
        answered = await self._lifeline.ask(asked)
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def node_stats(self, *, steps: int | None = 1, durations: bool = True) -> ClusterNumbers:
        """Live numbers of the node we are connected to; without steps, nothing of consumers."""
        asked = Stats(None, cluster=False, consumers=False, durations=durations)
        if steps is not None:
            asked = Stats(None, cluster=False, steps=steps, durations=durations)
        answered = await self._lifeline.ask(asked)
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def rights(self) -> tuple[str, list[Grant]]:
        """Who we are logged in as (empty: nobody needs to), and what was granted."""
        packet = (await self._lifeline.ask(GetRights())).packet
        assert isinstance(packet, GetRightsResponse)
        return packet.user, packet.grants

    async def members(self) -> list[Member]:
        """The nodes of the cluster."""
        packet = (await self._lifeline.ask(GetMembers())).packet
        assert isinstance(packet, GetMembersResponse)
        return packet.members

    async def set_consumer_prefetch(
        self,
        queue: str | int,
        client_id: int,
        consumer: int,
        prefetch: int,
        *,
        trial: bool = False,
    ) -> None:
        """As admin: set anyone's prefetch.

        A trial lasts until it says 0, or until this connection ends, however it ends; then the
        consumer has again what it asked for. There is one at a time.
        """
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(
            SetConsumerPrefetch(queue_id, client_id, consumer, prefetch, trial)
        )

    async def set_owner(self, queue: str | int, member_id: int) -> None:
        """As admin: move a queue to another node."""
        await self._lifeline.ask(SetOwner(await self.queue_id(queue), member_id))


def _changed(policy: QueuePolicy, changes: dict[str, Any]) -> QueuePolicy:
    try:
        changed = msgspec.structs.replace(policy, **changes)
        # Travels as data: what has the wrong type is found here, not over there.
        return msgspec.convert(msgspec.to_builtins(changed), QueuePolicy)
    except TypeError as failure:
        known = ", ".join(QueuePolicy.__struct_fields__)
        raise InvalidValue(f"{failure}; a policy has {known}") from None
    except msgspec.ValidationError as failure:
        raise InvalidValue(f"a policy's {failure}") from None
