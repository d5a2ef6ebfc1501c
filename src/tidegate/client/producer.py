"""The public producer of a queue, opened with `client.producer(...)`.

It corresponds to the cluster connection factory of the replicated-queues paper. Under the scaling
policy "clients" it is assigned to one replica. Under other policies its messages go to all replicas
by their shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from tidegate.client.checks import checked_payload
from tidegate.client.options import PLAIN, PutOptions, checked_options
from tidegate.client.outbox import Outbox
from tidegate.client.spread import Spread
from tidegate.core.errors import InvalidValue
from tidegate.core.model import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from tidegate.client.client import Client


class Producer:
    """A producer of one queue; use it with `async with`.

    It counts as a client of a logical queue from the start of the block to its end. The end of the
    block waits until all its messages are confirmed.
    """

    def __init__(self, client: Client, queue: str, member: int, *, wanted: int | None) -> None:
        self._client = client
        self.queue = queue
        self._member = member
        self._wanted = wanted
        self._outbox: Outbox | Spread | None = None
        self._unconfirmed: set[asyncio.Future[int]] = set()

    async def __aenter__(self) -> Producer:
        client = self._client
        info = await client.queue(self.queue)
        if info.elastic:
            self._outbox = Spread(
                client, self.queue, info.queue_id, member=self._member, wanted=self._wanted
            )
            client.add_producer(self._outbox)
            await self._outbox.ready()
        else:
            self._outbox = Outbox(client, self.queue)
            self._outbox.queue_id = info.queue_id
            client.add_producer(self._outbox)
        return self

    async def __aexit__(self, *_: object) -> None:
        outbox = self._opened()
        self._outbox = None
        while self._unconfirmed:
            await asyncio.wait(set(self._unconfirmed))
        self._client.drop_producer(outbox)
        if isinstance(outbox, Spread):
            await outbox.close()

    def _opened(self) -> Outbox | Spread:
        if self._outbox is None:
            raise InvalidValue("the producer is not open: use `async with mq.producer(queue)`")
        return self._outbox

    @property
    def replica(self) -> int | None:
        """The number of its replica; `None` if it has no replica of its own."""
        outbox = self._opened()
        place = outbox.membership.place if isinstance(outbox, Spread) else None
        return None if place is None else place.number

    @property
    def address(self) -> str | None:
        """The address of the node that serves its replica; `None` if there is none."""
        outbox = self._opened()
        place = outbox.membership.place if isinstance(outbox, Spread) else None
        return None if place is None else place.address

    def put(self, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message, and return a future of its id.

        The future is done once the message is on disk. Options and errors are those of
        `Client.put`.
        """
        outbox = self._opened()
        payload = checked_payload(payload)
        special = checked_options(options) if options else PLAIN
        future = outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)
        self._unconfirmed.add(future)
        future.add_done_callback(self._unconfirmed.discard)
        return future

    async def put_many(
        self, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in few batches; return their ids once all are on disk."""
        chosen = [checked_payload(payload) for payload in payloads]
        checked_options({"priority": priority})
        if not chosen:
            return []
        answers = await self._opened().add_many(chosen, priority)
        return [message_id for ids in answers for message_id in ids]
