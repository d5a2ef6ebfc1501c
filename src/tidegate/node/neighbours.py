"""Client connections from this node to the other nodes.

A connection is opened once, however many callers ask for it. The opening continues when a caller
times out, so that the next caller finds it open. On a slow machine a login may take longer than any
caller waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tidegate.client.client import Client
from tidegate.client.credentials import Credentials
from tidegate.client.link import Answered
from tidegate.core.ending import ended
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.node.accounts import NODE_USER
from tidegate.telemetry.numbers import NodeNumbers
from tidegate.wire.packet import Packet, Request
from tidegate.wire.packets.cluster import SetOwner

if TYPE_CHECKING:
    from tidegate.node.server import Node

_PATIENCE_S = 2.0
_HAND_OVER_S = 5.0


class Neighbours:
    """Connections to other nodes, opened on first use and reused while they are alive.

    Every call logs in as a node. A call raises `Unavailable` if the other node does not answer in
    time.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[str, Client] = {}
        self._opening: dict[str, asyncio.Task[Client]] = {}

    async def _client(self, address: str) -> Client:
        client = self._clients.get(address)
        if client is not None and client.link is not None and client.link.alive:
            return client
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address))
            opening.add_done_callback(lambda done: self._opened(address, done))
        return await asyncio.shield(opening)

    async def _open(self, address: str) -> Client:
        before = self._clients.pop(address, None)
        if before is not None:
            await before.close()
        tls = self._node.tls_to(address)
        login = Credentials(NODE_USER, self._node.accounts.node_password)
        client = Client(address, mode="admin", reconnect_s=_PATIENCE_S, credentials=login, tls=tls)
        await client.open()
        self._clients[address] = client
        return client

    def _opened(self, address: str, opening: asyncio.Task[Client]) -> None:
        del self._opening[address]
        if not opening.cancelled():
            # Whoever has asked may be gone.
            opening.exception()

    async def ask_for(self, address: str, queue_id: int, member_id: int) -> None:
        """Ask the queue's owner to transfer the queue to node `member_id`."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                client = await self._client(address)
                link = await client.connected()
                await link.ask(SetOwner(queue_id, member_id))
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not let go of the queue") from None

    async def delete_queue(self, address: str, queue_id: int) -> None:
        """Ask the queue's owner to delete it."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                await (await self._client(address)).delete_queue(queue_id)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def ask(self, address: str, request: Request, within_s: float) -> Packet:
        """Send a request to a node, which may be this one, and return the answer."""
        return (await self.asked(address, request, within_s)).packet

    async def asked(self, address: str, request: Request, within_s: float) -> Answered:
        """Send a request to a node and return the answer with its body."""
        try:
            async with asyncio.timeout(within_s):
                link = await (await self._client(address)).connected()
                return await link.ask(request)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def numbers(
        self,
        addresses: list[str],
        queue_id: int | None,
        steps: int | None,
        with_durations: bool = True,
    ) -> list[NodeNumbers]:
        """Return the stats of all nodes that answer in time.

        With `queue_id`, only the stats of that queue and of its replicas. `steps` is the number of
        control steps of each consumer; None: no consumers.
        """

        async def ask(address: str) -> list[NodeNumbers]:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    client = await self._client(address)
                    nodes = (await client.node_stats(steps=steps, durations=with_durations)).nodes
            except (TidegateError, TimeoutError):
                return []
            for node in nodes:
                node.queues = [q for q in node.queues if queue_id in (None, q.queue_id, q.alias_id)]
            return nodes

        answers = await asyncio.gather(*map(ask, addresses))
        return [node for nodes in answers for node in nodes]

    async def close(self) -> None:
        await ended(self._opening.values())
        for client in self._clients.values():
            with contextlib.suppress(TidegateError):
                await client.close()
        self._clients.clear()
