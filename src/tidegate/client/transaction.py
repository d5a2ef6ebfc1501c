"""A transaction: the puts and acknowledgements of a block, committed together at its end.

The client gathers everything and sends it as one request. If an exception leaves the block, nothing
is sent and held messages stay held.

A request whose answer was lost is sent again under the same number. If it contains puts, the node
knows whether it was committed. Acknowledgements alone leave no record, so their result stays
unknown, and the transaction raises `IoFailure`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from tidegate.client import tracing
from tidegate.client.connection import TRANSIENT_ERRORS
from tidegate.client.message import (
    Message,
    MessageOptions,
    PutOptions,
    checked_options,
    checked_payload,
)
from tidegate.client.producer import fill_columns
from tidegate.core.errors import InvalidValue, IoFailure, TooLarge
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.protocol.connection import MESSAGE_BYTES_MAX
from tidegate.protocol.messages import (
    Acknowledged,
    PutMessageResponse,
    PutMessages,
    Transact,
    TransactResponse,
)

if TYPE_CHECKING:
    from tidegate.client.client import Client

_BACKOFF_MAX_S = 0.5


class Transaction:
    """A transaction; use it as `async with mq.transaction() as tx`.

    The end of the block commits. It raises `IoFailure` if the result is not known, and `LeaseLost`
    if a message to acknowledge is no longer held.
    """

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client = client
        # For how long the commit is retried, in seconds.
        self._patience_s = patience_s
        # By queue: the position among all puts, the payload and the options.
        self._puts: dict[str, list[tuple[int, bytes, MessageOptions]]] = {}
        self._count = 0
        self._bytes = 0
        self._acked: dict[tuple[int, int, int], Message] = {}
        self._open = False
        # The ids of the puts in their order, after the commit. 0 means not known, as after a
        # resend.
        self.message_ids: list[int] = []

    async def __aenter__(self) -> Transaction:
        self._open = True
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._open = False
        if failure is None and (self._puts or self._acked):
            await self._commit()

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> None:
        """Put a message when the block ends; the options are those of `Client.put`.

        The payloads of a transaction are limited to 16 MiB in total; more raises `TooLarge`.
        """
        self._check_open()
        if not isinstance(queue, str) or not queue:
            raise InvalidValue(f"a queue is named by a string that is not empty, not {queue!r}")
        payload = checked_payload(payload)
        self._bytes += len(payload)
        if self._bytes > MESSAGE_BYTES_MAX:
            raise TooLarge(f"a transaction carries at most {MESSAGE_BYTES_MAX} bytes of payload")
        with tracing.publishing(queue, options.get("headers")) as headers:
            if headers:
                options["headers"] = headers
            entry = (self._count, payload, checked_options(options))
        self._puts.setdefault(queue, []).append(entry)
        self._count += 1

    def ack(self, message: Message) -> None:
        """Acknowledge a message when the block ends; it must be held by the same client."""
        self._check_open()
        transport, queue_id, consumer, tag = message.held_under()
        if transport is not self._client.transport:
            raise InvalidValue("this message is held by another client: each has its transactions")
        self._acked[queue_id, consumer, tag] = message

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidValue("the transaction is not open: use `async with mq.transaction()`")

    # Committing

    async def _commit(self) -> None:
        packet, bodies = await self._packet()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        backoff_s = 0.02
        while True:
            transport = await self._client.connected()
            if packet.acks and not packet.resent:
                for message in self._acked.values():
                    message.held_under()  # raises `LeaseLost` if the transport has changed since
            try:
                answered = await transport.request(packet, bodies)
                break
            except (IoFailure, *TRANSIENT_ERRORS) as failure:
                if packet.acks and not packet.puts:
                    raise IoFailure(
                        f"{failure}; whether these acknowledgements count is not known: messages "
                        "for which they do not will come again"
                    ) from None
                if loop.time() > deadline:
                    raise IoFailure(
                        f"{failure}; whether the transaction was done is not known"
                    ) from None
                # After a reconnect the same tags may mean other messages. The node then only
                # answers whether the transaction was committed before.
                packet.resent = bool(packet.acks)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
        assert isinstance(answered.packet, TransactResponse)
        self._note_ids(answered.packet)

    async def _packet(self) -> tuple[Transact, list[memoryview | bytes]]:
        puts = []
        bodies: list[memoryview | bytes] = []
        for queue, entries in self._puts.items():
            payloads = [payload for _, payload, _ in entries]
            put = PutMessages(
                await self._client.queue_id(queue),
                0,
                1,
                list(map(len, payloads)),
                [PRIORITY_DEFAULT],
            )
            fill_columns(put, [special for _, _, special in entries])
            puts.append(put)
            bodies += payloads
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for queue_id, consumer, tag in sorted(self._acked):
            mine = ranges.setdefault((queue_id, consumer), [])
            if mine and mine[-1][1] == tag - 1:
                mine[-1] = (mine[-1][0], tag)
            else:
                mine.append((tag, tag))
        acks = [Acknowledged(*whose, tags) for whose, tags in ranges.items()]
        # A producer id of its own, so that the node recognises a resend and nothing else.
        return Transact(secrets.randbits(62) + 1, 1, puts, acks), bodies

    def _note_ids(self, answer: TransactResponse) -> None:
        ids = [0] * self._count
        for entries, put in zip(self._puts.values(), answer.puts, strict=False):
            for (position, _, _), message_id in zip(entries, _ids(put), strict=False):
                ids[position] = message_id
        self.message_ids = ids


def _ids(put: PutMessageResponse) -> Iterator[int]:
    if put.ids is not None:
        yield from put.ids
        return
    message_id = put.first_id
    while True:
        yield message_id
        message_id += 1 if message_id else 0
