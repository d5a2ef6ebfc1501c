"""What a client knows of elastic queues: the ledger, read once, and the news from then on.

Who listens first and reads then misses nothing: what comes twice has a version. When the channel
has ended everything is listened for and read again. A user who may not listen looks into the
ledgers that it knows of, now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.adapters.rabbitmq.elastic.ledger import LedgerEmpty, read_topology
from tidegate.adapters.rabbitmq.elastic.refusal import told
from tidegate.adapters.rabbitmq.elastic.topology import NEWS, ElasticTopology, decoded
from tidegate.adapters.rabbitmq.lifeline import Lifeline, Patience
from tidegate.core.errors import Forbidden, TidegateError, Unavailable

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
# Between two looks of who may not listen.
_LOOK_S = 15.0


class News:
    """One client's knowledge of the elastic queues of its vhost."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        # None: not elastic.
        self._known: dict[str, ElasticTopology | None] = {}
        self._heard: dict[str, set[Callable[[], None]]] = {}
        self._channel: AbstractChannel | None = None
        self._name = ""
        self._may_listen = True
        self._keeping: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        # Of those who ask about a queue.
        self._turns: dict[str, asyncio.Lock] = {}

    async def topology(self, queue: str) -> ElasticTopology | None:
        """The newest that is known; None: a plain queue. The first time it is asked for."""
        # Nobody passes by who waits, also when it is known by now: puts stay in their order.
        async with self._turns.setdefault(queue, asyncio.Lock()):
            patience = Patience(self._lifeline)
            while queue not in self._known:
                try:
                    async with self._busy:
                        if queue not in self._known:
                            await self._learn(queue)
                except Unavailable as lost:
                    await patience.wait(lost)
        return self._current(queue)

    def forget(self, queue: str) -> None:
        """Something was not as it was known: it is read anew when it is asked for."""
        self._known.pop(queue, None)

    def on_news(self, queue: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Have something called when a queue has changed; call what this returns to end it."""
        listeners = self._heard.setdefault(queue, set())
        listeners.add(heard)
        return lambda: listeners.discard(heard)

    def _current(self, queue: str) -> ElasticTopology | None:
        known = self._known.get(queue)
        return None if known is None or known.is_over else known

    async def _learn(self, queue: str) -> None:
        if self._may_listen:
            try:
                await self._listen_for(queue)
            except Forbidden as refusal:
                self._may_listen = False
                log.info("replicas are looked for now and then: %s", refusal)
        if self._keeping is None or self._keeping.done():
            self._keeping = self._lifeline.spawn(self._keep())
        before = self._known.get(queue)
        try:
            found = await self._read(queue)
        except LedgerEmpty:
            # Many who read at once keep it from each other. Who knows something keeps to it, and
            # who knows nothing learns it from the news, or when it is written for the first time.
            found = before
        # News that came meanwhile are newer than that there is nothing to read.
        if found is not None or self._known.get(queue) is before:
            self._take(queue, found)

    async def _read(self, queue: str) -> ElasticTopology | None:
        channel = await self._lifeline.channel()
        try:
            return await read_topology(channel, queue)
        except Forbidden:
            return None  # as far as this user may know
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _listen(self) -> AbstractChannel:
        if self._channel is None or self._channel.is_closed:
            channel = await self._lifeline.channel()
            with told(f"exchange {NEWS!r}"):
                await channel.exchange_declare(NEWS, exchange_type="direct", durable=True)
                declared = await channel.queue_declare(exclusive=True, auto_delete=True)
                self._name = declared.queue or ""
                await channel.basic_consume(self._name, self._delivered, no_ack=True)
            self._channel = channel
        return self._channel

    async def _listen_for(self, queue: str) -> None:
        channel = await self._listen()
        with told(f"exchange {NEWS!r}"):
            await channel.queue_bind(self._name, NEWS, queue)

    async def _delivered(self, delivered: DeliveredMessage) -> None:
        topology = decoded(delivered.body)
        if topology is not None:
            self._take(topology.queue, topology)

    def _take(self, queue: str, topology: ElasticTopology | None) -> None:
        before = self._known.get(queue)
        if before is not None and topology is not None and topology.version <= before.version:
            return
        self._known[queue] = topology
        if topology != before:
            for heard in list(self._heard.get(queue, ())):
                heard()

    async def _keep(self) -> None:
        """Begin anew whenever the channel has ended; look where nobody may listen."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            if not self._may_listen:
                await asyncio.sleep(_LOOK_S)
            elif self._channel is not None:
                await asyncio.wait({self._channel.closing})
            try:
                async with self._busy:
                    if self._may_listen and not self._known:
                        # Who waits for the end of a channel that has ended does not wait at all.
                        await self._listen()
                    for queue in list(self._known):
                        await self._learn(queue)
                backoff_s = _BACKOFF_FIRST_S
            except TidegateError:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
