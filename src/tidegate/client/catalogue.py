"""The administrative calls about queues: create, find, inspect, empty, move."""

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

# Attempts of `set_policy` while other clients change the same policy.
_TRIES_MAX = 8


class WaitingIds(NamedTuple):
    """The ids of waiting messages, as ranges [first, last]."""

    ranges: list[tuple[int, int]]
    # All ids that the queue has assigned so far are lower than this one.
    below_id: int


class CatalogueCalls(Calls):
    """The part of a client that administrates queues."""

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
        ephemeral: bool = False,
    ) -> QueueInfo:
        """Create a queue and return it.

        Args:
            name: a unique name.
            durable: `False` keeps messages in the owner's memory only; a restart loses them.
            exist_ok: return an existing queue of that name, unchanged, and do not raise.
            policy: retries, dead letters and limits; `None` means the defaults of `QueuePolicy`.
            ephemeral: the node deletes the queue when this connection ends for any reason.

        Raises:
            QueueNameNotUnique: the name is taken and `exist_ok` is false.
            IoFailure: the answer was lost and `exist_ok` is false; the queue may exist.
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
        """Delete a queue and its messages; raise `QueueNotExisting` if there is none."""
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(DeleteQueue(queue_id), repeatable=False)
        self._forget_queue(queue_id)

    def _forget_queue(self, queue_id: int) -> None:
        self._queue_ids = {n: q for n, q in self._queue_ids.items() if q != queue_id}

    async def queues(self) -> list[QueueInfo]:
        """Return all queues; an empty list if there are none."""
        try:
            packet = (await self._lifeline.ask(GetQueues())).packet
        except NoQueues:
            return []
        assert isinstance(packet, GetQueuesResponse)
        return packet.queues

    async def active_queues(self) -> list[QueueInfo]:
        """Return the queues that hold a message for this client."""
        try:
            packet = (await self._lifeline.ask(GetActiveQueues())).packet
        except NoActiveQueues:
            return []
        assert isinstance(packet, GetActiveQueuesResponse)
        return packet.queues

    async def set_policy(
        self, queue: str | int, *, before: QueuePolicy | None = None, **changes: Any
    ) -> QueuePolicy:
        """Change fields of a queue's `QueuePolicy` and return the new policy.

        Fields that are not named keep their values, even if another client changes them meanwhile.

        Args:
            before: the policy that the caller has seen. If the queue's policy differs from it, the
                call changes nothing and raises `ChangedMeanwhile`. `None` retries on the current
                policy.
            changes: fields of `QueuePolicy` by name. An unknown field or a wrong type raises
                `InvalidValue`.
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
        """Stop deliveries from a queue until it is resumed; puts are still accepted."""
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
        """Send dead letters back to the queues they came from, and return their number.

        Args:
            queue: the dead-letter queue.
            to: send them to this queue, and not to their own ones.
            message_ids: only these messages; `None` means all.
            reason: only messages with this reason: "deliveries", "rejected", "expired", "overflow".
            limit: at most this many; `None` means no limit.
        """
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
        """Return waiting messages in the order of their ids, without taking them.

        Args:
            limit: the most messages to return. A shorter list means that there are no more.
            first_id, last_id: only ids from `first_id` to `last_id`; `None` means no upper limit.

        Browsed messages are not held, so they cannot be settled.
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
        """Return the ids of waiting messages without a receiver, the lowest ids first.

        A paused queue returns none. The list may be incomplete even within `limit`; call again for
        the rest. An empty list means that no such message waits.
        """
        check_count("limit", limit)
        packet = GetWaitingIds(await self.queue_id(queue), limit, last_id)
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, GetWaitingIdsResponse)
        return WaitingIds(answered.packet.ranges, answered.packet.below_id)

    async def ack_ids(self, queue: str | int, ranges: Iterable[tuple[int, int]]) -> int:
        """Acknowledge waiting messages by id; return how many of them there were.

        Each range is [first, last]. The call is for applications that browse messages and process
        them. Messages that a consumer holds are not affected.
        """
        packet = AcknowledgeIds(await self.queue_id(queue), list(ranges))
        # Repeatable: ids are never assigned twice, so after a lost answer the messages are simply
        # gone.
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, AcknowledgeIdsResponse)
        return answered.packet.count

    async def purge(self, queue: str | int) -> int:
        """Delete all waiting messages of a queue; return their number."""
        packet = (await self._lifeline.ask(PurgeQueue(await self.queue_id(queue)))).packet
        assert isinstance(packet, PurgeQueueResponse)
        return packet.count

    # Stats and control

    async def stats(
        self, queue: str | int | None = None, *, steps: int = 1, brief: bool = False
    ) -> ClusterNumbers:
        """Return live stats of all nodes, or of one queue.

        Args:
            queue: name or id; `None` means all queues.
            steps: how many of the latest control steps to include for each consumer whose prefetch
                is controlled.
            brief: leave out consumers and durations. Use it to poll all queues, since it is about
                ten times cheaper for the node.
        """
        queue_id = None if queue is None else await self.queue_id(queue)
        asked = Stats(queue_id, steps=steps, consumers=not brief, durations=not brief)
        answered = await self._lifeline.ask(asked)
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def node_stats(self, *, steps: int | None = 1, durations: bool = True) -> ClusterNumbers:
        """Return live stats of the connected node only.

        `steps` counts control steps per consumer as in `stats`; `None` leaves out the consumers.
        """
        asked = Stats(None, cluster=False, consumers=False, durations=durations)
        if steps is not None:
            asked = Stats(None, cluster=False, steps=steps, durations=durations)
        answered = await self._lifeline.ask(asked)
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def rights(self) -> tuple[str, list[Grant]]:
        """Return the user and the granted roles; the user is empty if no login is needed."""
        packet = (await self._lifeline.ask(GetRights())).packet
        assert isinstance(packet, GetRightsResponse)
        return packet.user, packet.grants

    async def members(self) -> list[Member]:
        """Return the nodes of the cluster."""
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
        """Set the prefetch of another client's consumer; needs admin mode.

        With `trial`, the value is part of an experiment. The experiment ends when the prefetch is
        set to 0 or when this connection ends. Then the consumer gets the prefetch that it asked
        for. A consumer has at most one experiment at a time; a second one raises `InvalidValue`.
        """
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(
            SetConsumerPrefetch(queue_id, client_id, consumer, prefetch, trial)
        )

    async def set_owner(self, queue: str | int, member_id: int) -> None:
        """Move a queue to another node; needs admin mode."""
        await self._lifeline.ask(SetOwner(await self.queue_id(queue), member_id))


def _changed(policy: QueuePolicy, changes: dict[str, Any]) -> QueuePolicy:
    try:
        changed = msgspec.structs.replace(policy, **changes)
        # `replace` checks no types. A round trip through builtins finds a wrong type here, not at
        # the node.
        return msgspec.convert(msgspec.to_builtins(changed), QueuePolicy)
    except TypeError as failure:
        known = ", ".join(QueuePolicy.__struct_fields__)
        raise InvalidValue(f"{failure}; a policy has {known}") from None
    except msgspec.ValidationError as failure:
        raise InvalidValue(f"a policy's {failure}") from None
