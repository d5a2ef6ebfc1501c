"""Single reads (`get`) and request/reply.

A read is a request with a lease, so the node takes a message back if its answer never arrives. A
read of a logical queue asks the replicas one after the other, the client's assigned replica first.
If all are empty, it waits at all of them at once.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidegate.client.calls import ORDERS, OrderName
from tidegate.client.lifeline import NOT_YET, Lifeline
from tidegate.client.link import Answered, Link
from tidegate.client.message import Message, batches_of
from tidegate.client.options import check_seconds
from tidegate.client.puts import PutCalls
from tidegate.client.reading import ReadHolder
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NoReply,
    NotOwner,
    QueueNotExisting,
    TidegateError,
)
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.core.replication import Topology
from tidegate.wire.packet import Packet, Request
from tidegate.wire.packets.reads import (
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
    Withdraw,
)
from tidegate.wire.packets.settling import Return, Settle
from tidegate.wire.packets.topologies import GetTopology, GetTopologyResponse

# The lease of a read that acknowledges: it lasts until the message has arrived and is acknowledged.
READ_LEASE_S = 30.0
# How long a read waits at the replicas before it asks for the topology again, in seconds.
_WAIT_S = 5.0
_AGAIN_S = 0.02
# Errors after which a read tries the next replica.
_NOTHING_HERE = (*NOT_YET, IoFailure, QueueNotExisting, NoMessagesInQueue, NoMessagesRetrieved)
# Makes the read request for a queue id and a wait in milliseconds.
MakePacket = Callable[[int, int], Request]


class Found(NamedTuple):
    """A message that was read, with the transport and queue it came from."""

    link: Link
    queue_id: int
    answer: Answered


class ReadCalls(PutCalls):
    """The part of a client that reads single messages."""

    def __init__(self, lifeline: Lifeline) -> None:
        super().__init__(lifeline)
        # As of the latest read, by queue id.
        self._topologies: dict[int, Topology] = {}

    async def get(
        self,
        queue: str | int,
        *,
        order: OrderName = "oldest",
        sender: int | str | None = None,
        context: int | None = None,
        wait: float = 0.0,
        lease: float | None = None,
    ) -> Message:
        """Take one message: at once, or when one arrives within `wait` seconds.

        Args:
            order: "oldest" by arrival, "priority" strictly by priority.
            sender: only messages from this client, by id or name.
            context: only the reply with this context, addressed to this client.
            wait: seconds to wait; 0 returns at once.
            lease: seconds for which the caller holds the message and must settle it. `None`
                acknowledges the message on arrival.

        Without a lease the acknowledgement is not confirmed, so the message may come again if the
        connection breaks at that moment. If the call is cancelled, a message that arrives
        afterwards is returned to the queue.

        Raises:
            NoMessagesInQueue: the queue is empty.
            NoMessagesRetrieved: the queue is paused, or no message matches.
            QueueNotExisting: no queue has that name or id.
        """
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        check_seconds("wait", wait, at_least=0.0)
        if lease is not None:
            check_seconds("lease", lease, at_least=0.001)
        queue_id = await self.queue_id(queue)
        sender_id = None if sender is None else await self._client_id(sender)
        lease_ms = int((READ_LEASE_S if lease is None else lease) * 1e3)

        def packet(where: int, wait_ms: int) -> Request:
            if context is not None:
                return ReadResponse(where, context, wait_ms, lease_ms)
            return ReadMessage(where, ORDERS[order], sender_id, wait_ms, lease_ms)

        deadline = asyncio.get_running_loop().time() + wait
        found = None
        while found is None:
            if self.is_elastic(queue_id):
                found = await self._read_replicas(
                    queue_id, packet, deadline, only_home=context is not None
                )
            else:
                found = await self._read_plain(queue_id, packet, deadline)
        run = found.answer.packet.run  # type: ignore[attr-defined]
        holder = ReadHolder(self._lifeline, str(queue), found.queue_id)
        if lease is None:
            found.link.post(Settle(found.queue_id, 0, [(run.tag, run.tag)]))
            run.tag = 0
        return batches_of([run], found.answer.body, holder, self._lifeline.generation)[0][0]

    async def _read_plain(self, queue_id: int, packet: MakePacket, deadline: float) -> Found | None:
        """Read from a plain queue; return `None` if it has become a logical queue.

        Consumers cannot read from the alias of a logical queue.
        """
        loop = asyncio.get_running_loop()
        while True:
            link = await self.connected()
            wait_ms = max(math.ceil((deadline - loop.time()) * 1e3), 0)
            try:
                return await _read(link, queue_id, packet(queue_id, wait_ms))
            except (*NOT_YET, IoFailure) as refusal:
                if isinstance(refusal, NotOwner) and (await self.queue(queue_id)).elastic:
                    return None
                # The read has a lease, so the node takes back a message that was on its way here.
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _read_replicas(
        self, queue_id: int, packet: MakePacket, deadline: float, *, only_home: bool
    ) -> Found | None:
        """Read from the first replica that has a message; if none has, wait at all of them.

        The assigned replica comes first. With `only_home`, ask the assigned replica only, which
        holds replies and other messages addressed to this client. Return `None` if the queue has
        become a plain one.
        """
        loop = asyncio.get_running_loop()
        # Start with the cached topology, which is mostly still right. Fetch a new one if no replica
        # has a message.
        topology = self._topologies.get(queue_id)
        is_old = topology is not None
        while True:
            if topology is None:
                try:
                    answered = await self._lifeline.ask(GetTopology(queue_id))
                except InvalidValue:
                    if (await self.queue(queue_id)).elastic:
                        raise
                    return None
                assert isinstance(answered.packet, GetTopologyResponse)
                topology = self._topologies[queue_id] = answered.packet.topology
            home = topology.home_of(self.client_id)
            places = [place.queue_id for place in topology.replicas if place.number == home]
            if not only_home:
                places += [p.queue_id for p in topology.replicas if p.number != home]
            link = await self.connected()
            nothing: TidegateError = NoMessagesInQueue(f"queue {topology.queue!r} is empty")
            for where in places:
                try:
                    return await _read(link, where, packet(where, 0))
                except _NOTHING_HERE as refusal:
                    if not isinstance(refusal, NoMessagesInQueue):
                        nothing = refusal
            topology = None
            left_s = deadline - loop.time()
            if is_old:
                is_old = False
                continue
            if left_s <= 0:
                raise nothing
            found = await _read_first(link, places, packet, min(left_s, _WAIT_S))
            if found is not None:
                return found
            await asyncio.sleep(min(_AGAIN_S, left_s))

    async def request(
        self,
        queue: str,
        payload: bytes,
        *,
        receiver: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        timeout: float = 30.0,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Message:
        """Put a request and return its reply, which the other side sends with `reply()`.

        `receiver` is the id of the client that may read the request; `None` means any. The other
        options are those of `put`.

        Raises:
            NoReply: no reply came within `timeout` seconds. The request is still in the queue or
                being handled.
        """
        check_seconds("timeout", timeout, at_least=0.0)
        context = secrets.randbits(62)
        await self.put(
            queue,
            payload,
            receiver=receiver,
            context=context,
            priority=priority,
            content_type=content_type,
            headers=headers,
        )
        try:
            return await self.get(queue, context=context, wait=timeout)
        except (NoMessagesInQueue, NoMessagesRetrieved):
            raise NoReply(f"no reply in queue {queue!r} within {timeout:g} s") from None

    def reply(
        self,
        message: Message,
        payload: bytes,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> asyncio.Future[int]:
        """Send a reply to a request, into the same queue, addressed to the request's sender.

        Return a future as `put` does. A message without a context is no request and raises
        `InvalidValue`.
        """
        if message.context is None:
            raise InvalidValue("this message asks for no reply: it has no context")
        return self.put(
            message.queue,
            payload,
            receiver=message.sender,
            context=message.context,
            priority=message.priority,
            content_type=content_type,
            headers=headers,
        )


async def _read(link: Link, queue_id: int, packet: Request) -> Found:
    return Found(
        link, queue_id, await link.ask(packet, abandoned=partial(_give_back, link, queue_id))
    )


async def _read_first(
    link: Link, places: list[int], packet: MakePacket, wait_s: float
) -> Found | None:
    """Wait at several queues for the first message; return additional messages to their queues.

    Return `None` if no queue has a message within `wait_s` seconds.
    """
    wait_ms = max(math.ceil(wait_s * 1e3), 1)
    reads = {asyncio.ensure_future(_read(link, where, packet(where, wait_ms))) for where in places}
    waiting = set(reads)
    found: Found | None = None
    try:
        while waiting and found is None:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for read in done:
                if read.exception() is None:
                    if found is None:
                        found = read.result()
                    else:
                        _return(read.result())
    except asyncio.CancelledError:
        for read in reads:
            if read.done() and not read.cancelled() and read.exception() is None:
                _return(read.result())
        raise
    finally:
        for read in waiting:
            read.cancel()
    return found


def _return(found: Found) -> None:
    """Return a message that was read in excess; it does not count as a failed delivery."""
    run = found.answer.packet.run  # type: ignore[attr-defined]
    found.link.submit(
        Return(found.queue_id, 0, [(run.tag, run.tag)], unstarted=True),
        None,
        lambda answer, body: None,
    )


def _give_back(link: Link, queue_id: int, packet_id: int, answer: Packet | None) -> None:
    """Withdraw an abandoned read, or return the message if its answer has come already.

    The message was not handled, so it does not count as a failed delivery.
    """
    if answer is None:
        link.submit(Withdraw(queue_id, packet_id), None, lambda answer, body: None)
        return
    assert isinstance(answer, ReadMessageResponse | ReadResponseResponse)
    tag = answer.run.tag
    packet = Return(queue_id, 0, [(tag, tag)], unstarted=True)
    link.submit(packet, None, lambda answer, body: None)
