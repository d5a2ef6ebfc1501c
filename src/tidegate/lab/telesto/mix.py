"""Telesto's mix of clients (§5.2 of the report): one way, request–response pairs and pool.

    one way  5/9   put a counter for a random other client, take the next, add one, put it again
    pair     2/9   two clients: a request to the partner, whose reply adds one
    pool     2/9   half put requests for any client, half answer them

Each client has its own connection and one request in progress. A read either waits at the node for
a message, or polls with a retry delay as Telesto's clients did. The clients of a type share one
queue. Clients check each reply; a wrong counter fails the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec

import tidegate
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.lab.telesto.tally import Tally

NINTHS = 9
ONE_WAY = "one-way"
PAIR = "pair"
POOL = "pool"
QUEUES = (ONE_WAY, PAIR, POOL)
REQUEST_TIMEOUT_S = 30.0


class MixOptions(msgspec.Struct, frozen=True):
    """The number of clients, and how they read."""

    clients: int = 90
    # `None` lets reads wait at the node. Otherwise they poll, and sleep this long after a miss.
    retry_delay_s: float | None = None
    # How long a read waits at the node before it counts as a miss.
    wait_s: float = 1.0
    # Every n-th read first asks without waiting. This shows the response times of hits and misses
    # without the wait for other clients. 0 means never.
    glance_every: int = 0
    durable: bool = True


class Role(msgspec.Struct, frozen=True):
    """The part of one client in the mix."""

    number: int
    kind: str
    # `partner` is the number of a pair's other client; `asks` is for pairs and the pool.
    partner: int | None = None
    asks: bool = False

    @property
    def serves(self) -> bool:
        """Whether the client answers others, and so must stop after them."""
        return self.kind != ONE_WAY and not self.asks


def roles_of(clients: int) -> list[Role]:
    """Return the roles of all clients, in the proportions of table 5.1."""
    if clients < NINTHS or clients % NINTHS:
        raise ValueError(f"the mix is made of ninths: {clients} clients are no multiple of 9")
    ninth = clients // NINTHS
    one_way = 5 * ninth
    roles = [Role(number, ONE_WAY) for number in range(one_way)]
    for first in range(one_way, one_way + 2 * ninth, 2):
        roles.append(Role(first, PAIR, partner=first + 1, asks=True))
        roles.append(Role(first + 1, PAIR, partner=first))
    pool = range(one_way + 2 * ninth, clients)
    roles += [Role(number, POOL, asks=position % 2 == 0) for position, number in enumerate(pool)]
    return roles


class CounterWrong(AssertionError):
    """A reply belongs to another request; the run is not valid."""


class MixClient:
    """A client that works until `stopping` is set."""

    def __init__(self, role: Role, options: MixOptions, client: Client, tally: Tally) -> None:
        self.role = role
        self._options = options
        self._mq = client
        self._tally = tally
        self._reads = 0
        self._random = random.Random(role.number)
        self.stopping = False

    async def run(self, client_ids: Sequence[int]) -> None:
        """Play the role; `client_ids` are the ids of all clients by number."""
        role = self.role
        if role.kind == ONE_WAY:
            others = [
                client_ids[other.number]
                for other in roles_of(len(client_ids))
                if other.kind == ONE_WAY and other.number != role.number
            ]
            await self._pass_on(others)
        elif role.asks:
            receiver = None if role.partner is None else client_ids[role.partner]
            await self._ask(role.kind, receiver)
        else:
            await self._serve(role.kind)

    # The three types

    async def _pass_on(self, others: Sequence[int]) -> None:
        counter = 0
        while not self.stopping:
            await self._put(ONE_WAY, counter, receiver=self._random.choice(others))
            message = await self._take(ONE_WAY)
            if message is None:
                return
            counter = int(message.payload) + 1

    async def _ask(self, queue: str, receiver: int | None) -> None:
        counter = 0
        while not self.stopping:
            if self._options.retry_delay_s is None:
                reply: Message | None = await self._request(queue, counter, receiver)
            else:
                context = self._random.getrandbits(62)
                await self._put(queue, counter, receiver=receiver, context=context)
                reply = await self._take(queue, context=context)
            if reply is None:
                return
            if int(reply.payload) != counter + 1:
                raise CounterWrong(f"{queue}: {counter} was answered by {reply.payload!r}")
            counter = int(reply.payload) + 1

    async def _serve(self, queue: str) -> None:
        while True:
            message = await self._take(queue)
            if message is None:
                return
            began = time.perf_counter()
            await self._mq.reply(message, b"%d" % (int(message.payload) + 1))
            self._tally.put(time.perf_counter() - began)

    # The requests, each measured

    async def _put(
        self, queue: str, counter: int, *, receiver: int | None, context: int | None = None
    ) -> None:
        began = time.perf_counter()
        await self._mq.put(queue, b"%d" % counter, receiver=receiver, context=context)
        self._tally.put(time.perf_counter() - began)

    async def _request(self, queue: str, counter: int, receiver: int | None) -> Message:
        began = time.perf_counter()
        reply = await self._mq.request(
            queue, b"%d" % counter, receiver=receiver, timeout=REQUEST_TIMEOUT_S
        )
        self._tally.request(time.perf_counter() - began)
        return reply

    async def _take(self, queue: str, context: int | None = None) -> Message | None:
        """Return the next message for this client, or `None` after a miss when it is stopping."""
        options = self._options
        self._reads += 1
        at_once = options.retry_delay_s is not None or (
            options.glance_every > 0 and self._reads % options.glance_every == 0
        )
        while True:
            began = time.perf_counter()
            try:
                message = await self._mq.get(
                    queue, context=context, wait=0.0 if at_once else options.wait_s
                )
            except _MISSES:
                self._tally.miss(time.perf_counter() - began, waited=not at_once)
                if self.stopping:
                    return None
                if options.retry_delay_s is not None:
                    await asyncio.sleep(options.retry_delay_s)
                else:
                    at_once = False
                continue
            self._tally.hit(time.perf_counter() - began, waited=not at_once)
            return message


_MISSES = (tidegate.NoMessagesInQueue, tidegate.NoMessagesRetrieved)
