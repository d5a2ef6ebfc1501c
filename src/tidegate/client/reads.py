"""Single reads (`get`).

A read is a request with a lease, so the node takes a message back if its answer never arrives. A
read of a logical queue asks the replicas one after the other, the client's assigned replica first.
If all are empty, it waits at all of them at once.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import NamedTuple

from tidegate.client.connection import TRANSIENT_ERRORS, ClusterConnection, Response, Transport
from tidegate.client.directory import QueueDirectory
from tidegate.client.message import Message, ReturnOptions, split_payloads
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    LeaseLost,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NotOwner,
    QueueNotExisting,
    TidegateError,
)
from tidegate.core.model import Order
from tidegate.core.topology import Topology
from tidegate.protocol.cluster import GetTopology, GetTopologyResponse
from tidegate.protocol.messages import (
    Extend,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
    Return,
    Settle,
    SettleResponse,
    Withdraw,
)
from tidegate.protocol.packet import Packet, Request

# The lease of a read that acknowledges: it lasts until the message has arrived and is acknowledged.
READ_LEASE_S = 30.0
# How long a read waits at the replicas before it asks for the topology again, in seconds.
_WAIT_S = 5.0
_RETRY_S = 0.02
# Errors after which a read tries the next replica.
_NOTHING_HERE = (
    *TRANSIENT_ERRORS,
    IoFailure,
    QueueNotExisting,
    NoMessagesInQueue,
    NoMessagesRetrieved,
)


class ReadRequest(NamedTuple):
    """What a read asks each queue for."""

    order: Order
    sender_id: int | None
    # The context of the wanted reply; `None` means a message of any kind.
    context: int | None
    lease_ms: int

    def packet(self, queue_id: int, wait_ms: int) -> Request:
        if self.context is not None:
            return ReadResponse(queue_id, self.context, wait_ms, self.lease_ms)
        return ReadMessage(queue_id, self.order, self.sender_id, wait_ms, self.lease_ms)


class ReadResult(NamedTuple):
    """A message that was read, with the transport and queue it came from."""

    transport: Transport
    queue_id: int
    answer: Response


class Reader:
    """Reads single messages for a client."""

    def __init__(self, connection: ClusterConnection, queues: QueueDirectory) -> None:
        self._connection = connection
        self._queues = queues
        # As of the latest read, by queue id.
        self._topologies: dict[int, Topology] = {}

    async def read(
        self, queue: str | int, queue_id: int, request: ReadRequest, wait_s: float, *, is_held: bool
    ) -> Message:
        """Read a message, and wait up to `wait_s` seconds for one.

        `is_held` leaves the message to the caller to settle; otherwise it is acknowledged.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        found = None
        while found is None:
            if queue_id in self._queues.logical_ids:
                found = await self._read_replicas(queue_id, request, deadline)
            else:
                found = await self._read_plain(queue_id, request, deadline)
        run = found.answer.packet.run  # type: ignore[attr-defined]
        settler = ReadSettler(self._connection, str(queue), found.queue_id)
        if not is_held:
            found.transport.post(Settle(found.queue_id, 0, [(run.tag, run.tag)]))
            run.tag = 0
        return split_payloads([run], found.answer.body, settler, self._connection.generation)[0][0]

    async def _read_plain(
        self, queue_id: int, request: ReadRequest, deadline: float
    ) -> ReadResult | None:
        """Read from a plain queue; return `None` if it has become a logical queue.

        Consumers cannot read from the alias of a logical queue.
        """
        loop = asyncio.get_running_loop()
        while True:
            transport = await self._connection.connected()
            wait_ms = max(math.ceil((deadline - loop.time()) * 1e3), 0)
            try:
                return await _read(transport, queue_id, request.packet(queue_id, wait_ms))
            except (*TRANSIENT_ERRORS, IoFailure) as refusal:
                if isinstance(refusal, NotOwner) and (await self._queues.find(queue_id)).elastic:
                    return None
                # The read has a lease, so the node takes back a message that was on its way here.
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _read_replicas(
        self, queue_id: int, request: ReadRequest, deadline: float
    ) -> ReadResult | None:
        """Read from the first replica that has a message; if none has, wait at all of them.

        The assigned replica comes first. A read of a reply asks the assigned replica only, which
        holds the messages that are addressed to this client. Return `None` if the queue has become
        a plain one.
        """
        loop = asyncio.get_running_loop()
        # Start with the cached topology, which is mostly still right. Fetch a new one if no replica
        # has a message.
        topology = self._topologies.get(queue_id)
        is_old = topology is not None
        while True:
            if topology is None:
                try:
                    answered = await self._connection.request(GetTopology(queue_id))
                except InvalidValue:
                    if (await self._queues.find(queue_id)).elastic:
                        raise
                    return None
                assert isinstance(answered.packet, GetTopologyResponse)
                topology = self._topologies[queue_id] = answered.packet.topology
            home = topology.home_of(self._connection.identity().client_id)
            places = [place.queue_id for place in topology.replicas if place.number == home]
            if request.context is None:
                places += [p.queue_id for p in topology.replicas if p.number != home]
            transport = await self._connection.connected()
            nothing: TidegateError = NoMessagesInQueue(f"queue {topology.queue!r} is empty")
            for where in places:
                try:
                    return await _read(transport, where, request.packet(where, 0))
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
            found = await _read_first(transport, places, request, min(left_s, _WAIT_S))
            if found is not None:
                return found
            await asyncio.sleep(min(_RETRY_S, left_s))


async def _read(transport: Transport, queue_id: int, packet: Request) -> ReadResult:
    return ReadResult(
        transport,
        queue_id,
        await transport.request(packet, abandoned=partial(_return_abandoned, transport, queue_id)),
    )


async def _read_first(
    transport: Transport, places: list[int], request: ReadRequest, wait_s: float
) -> ReadResult | None:
    """Wait at several queues for the first message; return additional messages to their queues.

    Return `None` if no queue has a message within `wait_s` seconds.
    """
    wait_ms = max(math.ceil(wait_s * 1e3), 1)
    reads = {
        asyncio.ensure_future(_read(transport, where, request.packet(where, wait_ms)))
        for where in places
    }
    waiting = set(reads)
    found: ReadResult | None = None
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


def _return(found: ReadResult) -> None:
    """Return a message that was read in excess; it does not count as a failed delivery."""
    run = found.answer.packet.run  # type: ignore[attr-defined]
    found.transport.submit(
        Return(found.queue_id, 0, [(run.tag, run.tag)], unstarted=True),
        None,
        lambda answer, body: None,
    )


def _return_abandoned(
    transport: Transport, queue_id: int, packet_id: int, answer: Packet | None
) -> None:
    """Withdraw an abandoned read, or return the message if its answer has come already.

    The message was not handled, so it does not count as a failed delivery.
    """
    if answer is None:
        transport.submit(Withdraw(queue_id, packet_id), None, lambda answer, body: None)
        return
    assert isinstance(answer, ReadMessageResponse | ReadResponseResponse)
    tag = answer.run.tag
    packet = Return(queue_id, 0, [(tag, tag)], unstarted=True)
    transport.submit(packet, None, lambda answer, body: None)


# Settling of messages that were read under a lease; the node assigns them to consumer number 0.


class ReadSettler:
    """Settles messages that were read with a lease."""

    def __init__(self, connection: ClusterConnection, queue: str, queue_id: int) -> None:
        self._connection = connection
        self.queue = queue
        self._queue_id = queue_id

    def _transport(self, generation: int) -> Transport:
        transport = self._connection.transport
        if generation != self._connection.generation or transport is None or not transport.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        return transport

    def lease_of(self, generation: int) -> tuple[Transport, int, int]:
        """Return transport, queue id and consumer number; raise `LeaseLost` after a reconnect."""
        return self._transport(generation), self._queue_id, 0

    def ack_tag(self, tag: int, generation: int) -> None:
        self._transport(generation).post(Settle(self._queue_id, 0, [(tag, tag)]))

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        await self._settle(Settle(self._queue_id, 0, [(first, last)], confirm=True), generation)

    async def return_tags(self, first: int, last: int, generation: int, how: ReturnOptions) -> None:
        await self._settle(Return(self._queue_id, 0, [(first, last)], *how), generation)

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lease_ms = max(int(lease_s * 1e3), 1)
        await self._settle(Extend(self._queue_id, 0, [(first, last)], lease_ms), generation)

    async def _settle(self, packet: Settle | Return | Extend, generation: int) -> None:
        answered = await self._transport(generation).request(packet)
        assert isinstance(answered.packet, SettleResponse)
        # In a cumulative acknowledgement, `lost` also counts messages that were settled before.
        single = packet.ranges is not None and packet.ranges[0][0] == packet.ranges[0][1]
        if answered.packet.lost and single:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")
