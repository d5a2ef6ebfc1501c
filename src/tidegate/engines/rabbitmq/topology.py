"""A client's view of the elastic queues of its vhost: the stored topology plus a change feed.

The client binds to the feed first and reads the stored topology then, so it misses no change. A
topology that arrives twice is recognised by its version.

When the feed's channel closes, the client binds and reads again for every queue that it knows. A
user without permission to listen reads the stored topologies every 15 seconds instead.
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
# Seconds between two reads without permission to listen.
_LOOK_S = 15.0


class News:
    """The elastic queues of one vhost, as one client knows them."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        # Topology by queue; None means a plain queue.
        self._known: dict[str, ElasticTopology | None] = {}
        self._heard: dict[str, set[Callable[[], None]]] = {}
        self._channel: AbstractChannel | None = None
        self._name = ""
        self._may_listen = True
        self._keeping: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        # One lock per queue, which keeps callers in order.
        self._turns: dict[str, asyncio.Lock] = {}

    async def topology(self, queue: str) -> ElasticTopology | None:
        """Return the newest known topology; None means a plain queue.

        The first call for a queue reads the stored topology, and waits for a connection if need be.
        """
        # Take the lock even if the topology is known by now: a later put must not overtake one that
        # waits.
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
        """Discard a topology that proved wrong; the next call of `topology` reads it again."""
        self._known.pop(queue, None)

    def on_news(self, queue: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever the queue's topology changes; return a function that ends this."""
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
            # Many concurrent readers may keep the message from each other. Keep the known topology;
            # without one, the feed brings the next.
            found = before
        # A topology that the feed brought meanwhile is newer than an empty read.
        if found is not None or self._known.get(queue) is before:
            self._take(queue, found)

    async def _read(self, queue: str) -> ElasticTopology | None:
        channel = await self._lifeline.channel()
        try:
            return await read_topology(channel, queue)
        except Forbidden:
            return None  # this user may not read it: treat the queue as plain
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
        """Listen and read again when the channel has closed; without permission, poll."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            if not self._may_listen:
                await asyncio.sleep(_LOOK_S)
            elif self._channel is not None:
                await asyncio.wait({self._channel.closing})
            try:
                async with self._busy:
                    if self._may_listen and not self._known:
                        # Without queues, nothing else would reopen a closed channel, and the loop
                        # would spin.
                        await self._listen()
                    for queue in list(self._known):
                        await self._learn(queue)
                backoff_s = _BACKOFF_FIRST_S
            except TidegateError:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
