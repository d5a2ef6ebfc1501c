"""The client's connection to the cluster: connect, log in, identify, heartbeat, reconnect.

Theory of operation. A `ClusterConnection` belongs to one client and has at most one `Transport` at
a time. Each new transport is a new *generation*, counted from 1. Leases belong to a generation,
since the node returns all held messages to their queues when the transport ends.

States:

- connected: `link` is an open transport, and requests go to it at once.
- reconnecting: `link` is `None`. A task tries all nodes of the URL in turn, with a delay that grows
  from 0.02 s to 1 s. Calls wait for the new transport.
- outage: reconnecting has taken `reconnect_s` seconds. Pending and new calls fail with
  `Unavailable`. The task keeps trying, and success ends the outage.
- rejected: a node refused the login or the identity, with an error that a retry cannot cure. Calls
  fail with this error. The task ends.
- closed: by `close`. Calls fail with `Unavailable`.

Establishing a transport takes three steps: open TCP (and TLS), log in if there are credentials, and
identify. A named client registers its name or identifies as the existing client of that name. A
nameless client registers a generated name, and the node deletes it when the transport ends. After a
reconnect to the same node, it keeps its identity if the node has not deleted it yet.

The connection pings every 10 s. It aborts a transport that has been silent for 30 s, since a dead
peer may never close its socket.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tidegate.client.credentials import Credentials
from tidegate.client.link import Answered, Link
from tidegate.client.login import log_in
from tidegate.core.errors import (
    ClientNameNotUnique,
    InvalidValue,
    IoFailure,
    NotOwner,
    RetryLater,
    StaleEpoch,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import ClientInfo, Mode
from tidegate.wire.packet import Packet, Ping
from tidegate.wire.packets.clients import (
    IdentifyClient,
    IdentifyClientResponse,
    RegisterClient,
    RegisterClientResponse,
)

_CONNECT_S = 5.0
_HEARTBEAT_S = 10.0
# The queue is moving to another node, or its owner is starting: ask again.
NOT_YET = (Unavailable, NotOwner, StaleEpoch)


class Lifeline:
    """A reconnecting connection of one client to the nodes of its URL."""

    def __init__(
        self,
        nodes: list[tuple[str, int]],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        name: str | None,
        client_id: int | None,
        mode: Mode,
        reconnect_s: float,
        on_push: Callable[[Packet, memoryview], None],
        on_resumed: Callable[[], None],
        on_gave_up: Callable[[TidegateError], None],
    ) -> None:
        self._nodes = nodes
        self._credentials = credentials
        self._tls = tls
        self._name = name
        self._wanted_id = client_id
        self._mode = mode
        self.reconnect_s = reconnect_s
        self._on_push = on_push
        self._on_resumed = on_resumed
        self._on_gave_up = on_gave_up
        self.link: Link | None = None
        self.info: ClientInfo | None = None
        self.generation = 0
        self.closed = False
        # The error with which calls fail at once; see "outage", "rejected" and "closed" above.
        self.outage: TidegateError | None = None
        self._last_failure = "the connection was lost"
        self._node: tuple[str, int] | None = None
        self._connected: asyncio.Future[Link] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Connect to the first node that answers; raise `Unavailable` if none does."""
        self._connected = asyncio.get_running_loop().create_future()
        failures = []
        for host, port in self._nodes:
            try:
                await self._connect(host, port)
                break
            except Unavailable as failure:
                failures.append(str(failure))
        else:
            raise Unavailable("; ".join(failures))
        self.spawn(self._beat())

    async def close(self) -> None:
        self.closed = True
        self.outage = Unavailable("the client is closed")
        if self.link is not None:
            self.link.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Let asyncio's transport finish closing before the event loop may end.
        await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, host: str, port: int) -> None:
        link = await Link.open(host, port, self._on_push, self._lost, _CONNECT_S, self._tls)
        try:
            async with asyncio.timeout(_CONNECT_S):
                if self._credentials is not None:
                    await log_in(link, self._credentials)
                self.info = await self._identify(link, (host, port))
        except TimeoutError:
            link.abort()
            raise Unavailable(f"the node at {host}:{port} does not answer") from None
        except IoFailure:
            # Registering can be repeated: a name that exists by now is identified.
            link.abort()
            raise Unavailable(f"the node at {host}:{port} hung up") from None
        except TidegateError:
            link.abort()
            raise
        if not link.alive:
            # It closed after the answer. That was ignored, since it was not the current transport
            # yet.
            raise Unavailable(f"the node at {host}:{port} hung up")
        self.link = link
        self._node = (host, port)
        self.generation += 1
        if self._connected is None or self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_result(link)

    async def _identify(self, link: Link, node: tuple[str, int]) -> ClientInfo:
        """Identify as this client, or register it; return its identity."""
        known = self._wanted_id if self.info is None else self.info.client_id
        if self._name is None and self._wanted_id is None and node != self._node:
            # The former node does not know that this client came back elsewhere. It deletes the
            # client of that id when it notices the lost transport.
            known = None
        if known is not None:
            try:
                ephemeral = self._name is None and self._wanted_id is None
                return _client_of(await link.ask(IdentifyClient(known, None, ephemeral)))
            except TidegateError:
                if self._name is not None or self._wanted_id is not None:
                    raise
                # The node has deleted the nameless client together with its transport: register a
                # new one.
        if self._name is None:
            name = nameless_name()
            return _client_of(await link.ask(RegisterClient(name, self._mode, True)))
        try:
            return _client_of(await link.ask(RegisterClient(self._name, self._mode)))
        except ClientNameNotUnique:
            client = _client_of(await link.ask(IdentifyClient(name=self._name)))
            if client.mode != self._mode:
                raise InvalidValue(
                    f"client {self._name!r} is registered as {client.mode.name.lower()}, not "
                    f"{self._mode.name.lower()}: delete it first, or choose another name"
                ) from None
            return client

    def _lost(self, link: Link) -> None:
        if link is not self.link or self.closed:
            return
        self.link = None
        self._connected = asyncio.get_running_loop().create_future()
        # Mark an exception as seen, since there may be no call that waits for it.
        self._connected.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        """Try all nodes until one accepts the client; calls wait at most `reconnect_s` for it."""
        loop = asyncio.get_running_loop()
        patience = loop.call_later(self.reconnect_s, self._out_of_patience)
        backoff_s = 0.02
        try:
            while not await self._try_every_node():
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, 1.0)
        except asyncio.CancelledError:
            # The event loop is ending: fail all waiting calls, which would otherwise wait for ever.
            self._give_up(Unavailable("the client was closed"))
            raise
        except TidegateError as error:
            self._give_up(error)  # a node rejected this client: trying again would not help
            return
        finally:
            patience.cancel()
        self.outage = None
        self._on_resumed()

    async def _try_every_node(self) -> bool:
        for host, port in self._nodes:
            try:
                await self._connect(host, port)
            except RetryLater as error:
                self._last_failure = str(error)
            else:
                return True
        return False

    def _out_of_patience(self) -> None:
        waited = f"{self.reconnect_s:g} s"
        self._give_up(Unavailable(f"no connection for {waited}: {self._last_failure}"))

    def _give_up(self, error: TidegateError) -> None:
        """Fail pending requests with `error`, and new ones until a transport is established."""
        self.outage = error
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
        self._on_gave_up(error)

    async def connected(self) -> Link:
        """Return the current transport, and wait for one if necessary.

        Raise the error of an outage, if there is one.
        """
        link = self.link
        if link is not None and link.alive and not self.closed:
            return link
        if self.outage is not None:
            raise self.outage
        if self._connected is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        if self._connected.done():
            # The transport has just failed: let `_lost` run, which creates a new future.
            await asyncio.sleep(0)
        return await asyncio.shield(self._connected)

    async def _beat(self) -> None:
        """Ping every 10 s; abort a transport that has been silent for three intervals."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            link = self.link
            if link is None or not link.alive:
                continue
            if loop.time() - link.heard_at > 3 * _HEARTBEAT_S:
                link.abort()
                continue
            link.submit(Ping(), None, lambda answer, body: None)

    async def ask(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None = None,
        *,
        repeatable: bool = True,
    ) -> Answered:
        """Send a request until an answer comes, for at most `reconnect_s` seconds.

        With `repeatable=False`, a request whose answer was lost is not sent again; it raises
        `IoFailure`. After one of `TRANSIENT_ERRORS` the request is sent again in either case.
        """
        backoff_s = 0.02
        deadline = asyncio.get_running_loop().time() + self.reconnect_s
        while True:
            link = await self.connected()
            try:
                return await link.ask(packet, bodies)
            except IoFailure:
                if not repeatable or asyncio.get_running_loop().time() > deadline:
                    raise
                # Either this transport failed, and `connected` waits for the next; or a node behind
                # it failed.
                await asyncio.sleep(backoff_s if link.alive else 0.0)
            except NOT_YET:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 0.5)


def _client_of(answered: Answered) -> ClientInfo:
    packet = answered.packet
    assert isinstance(packet, RegisterClientResponse | IdentifyClientResponse)
    return packet.client


def nameless_name() -> str:
    """Return a name for a client that was given none.

    The part before the @ is the program, so that telemetry recognises a client after a restart.
    """
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.stem == "__main__" else path.stem
    # Replace characters that end the program's part of the name, and limit its length.
    program = re.sub(r"[#@\s]", "-", program)[:64] or "python"
    return f"{program}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
