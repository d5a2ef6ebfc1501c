"""The client's connection to the cluster: connect, log in, identify, heartbeat, reconnect.

Theory of operation. A `ClusterConnection` belongs to one client and has at most one `Transport` at
a time. Each new transport is a new *generation*, counted from 1. Leases belong to a generation,
since the node returns all held messages to their queues when the transport ends.

States:

- connected: `transport` is an open transport, and requests go to it at once.
- reconnecting: `transport` is `None`. A task tries all nodes of the URL in turn, with a delay that
  grows from 0.02 s to 1 s. Calls wait for the new transport.
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
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

from tidegate.client.address import Credentials
from tidegate.core.errors import (
    ClientNameNotUnique,
    InvalidValue,
    IoFailure,
    NotAuthenticated,
    NotOwner,
    RetryLater,
    StaleEpoch,
    TidegateError,
    Unavailable,
    from_code,
)
from tidegate.core.model import ClientInfo, ClientMode
from tidegate.protocol.catalogue import (
    Authenticate,
    AuthenticateResponse,
    IdentifyClient,
    IdentifyClientResponse,
    Prove,
    ProveResponse,
    RegisterClient,
    RegisterClientResponse,
)
from tidegate.protocol.connection import ProtocolConnection, ReceivedPacket
from tidegate.protocol.packet import Error, Packet, Ping, Push
from tidegate.protocol.scram import ClientLogin

_CONNECT_S = 5.0
_HEARTBEAT_S = 10.0
# The queue is moving to another node, or its owner is starting: ask again.
TRANSIENT_ERRORS = (Unavailable, NotOwner, StaleEpoch)


class ConnectionListener(Protocol):
    """The client that a connection belongs to."""

    def on_push(self, packet: Packet, body: memoryview) -> None:
        """Handle a packet that is no answer. The body is valid only during the call."""

    def on_resumed(self) -> None:
        """Register and send everything again, over a new transport."""

    def on_outage(self, error: TidegateError) -> None:
        """Fail everything that waits for a transport."""


class ClusterConnection:
    """A reconnecting connection of one client to the nodes of its URL."""

    def __init__(
        self,
        nodes: list[tuple[str, int]],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        name: str | None,
        client_id: int | None,
        mode: ClientMode,
        reconnect_s: float,
        listener: ConnectionListener,
    ) -> None:
        self._nodes = nodes
        self._credentials = credentials
        self._tls = tls
        self._name = name
        self._wanted_id = client_id
        self._mode = mode
        self.reconnect_s = reconnect_s
        self._listener = listener
        self.transport: Transport | None = None
        self.info: ClientInfo | None = None
        self.generation = 0
        self.closed = False
        # The error with which calls fail at once; see "outage", "rejected" and "closed" above.
        self.outage: TidegateError | None = None
        self._last_failure = "the connection was lost"
        self._node: tuple[str, int] | None = None
        self._connected: asyncio.Future[Transport] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def identity(self) -> ClientInfo:
        """Return the client's registration; raise `InvalidValue` before it is opened."""
        if self.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        return self.info

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
        self.spawn(self._send_heartbeats())

    async def close(self) -> None:
        self.closed = True
        self.outage = Unavailable("the client is closed")
        if self.transport is not None:
            self.transport.close()
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
        transport = await Transport.open(
            host, port, self._listener.on_push, self._on_transport_lost, _CONNECT_S, self._tls
        )
        try:
            async with asyncio.timeout(_CONNECT_S):
                if self._credentials is not None:
                    await log_in(transport, self._credentials)
                self.info = await self._identify(transport, (host, port))
        except TimeoutError:
            transport.abort()
            raise Unavailable(f"the node at {host}:{port} does not answer") from None
        except IoFailure:
            # Registering can be repeated: a name that exists by now is identified.
            transport.abort()
            raise Unavailable(f"the node at {host}:{port} hung up") from None
        except BaseException:
            # Also if cancelled: no other code would close the connection.
            transport.abort()
            raise
        if not transport.alive:
            # It closed after the answer. That was ignored, since it was not the current transport
            # yet.
            raise Unavailable(f"the node at {host}:{port} hung up")
        self.transport = transport
        self._node = (host, port)
        self.generation += 1
        if self._connected is None or self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_result(transport)

    async def _identify(self, transport: Transport, node: tuple[str, int]) -> ClientInfo:
        """Identify as this client, or register it; return its identity."""
        known = self._wanted_id if self.info is None else self.info.client_id
        if self._name is None and self._wanted_id is None and node != self._node:
            # The former node does not know that this client came back elsewhere. It deletes the
            # client of that id when it notices the lost transport.
            known = None
        if known is not None:
            try:
                ephemeral = self._name is None and self._wanted_id is None
                return _client_of(await transport.request(IdentifyClient(known, None, ephemeral)))
            except TidegateError:
                if self._name is not None or self._wanted_id is not None:
                    raise
                # The node has deleted the nameless client together with its transport: register a
                # new one.
        if self._name is None:
            name = default_client_name()
            return _client_of(await transport.request(RegisterClient(name, self._mode, True)))
        try:
            return _client_of(await transport.request(RegisterClient(self._name, self._mode)))
        except ClientNameNotUnique:
            client = _client_of(await transport.request(IdentifyClient(name=self._name)))
            if client.mode != self._mode:
                raise InvalidValue(
                    f"client {self._name!r} is registered as {client.mode.name.lower()}, not "
                    f"{self._mode.name.lower()}: delete it first, or choose another name"
                ) from None
            return client

    def _on_transport_lost(self, transport: Transport) -> None:
        if transport is not self.transport or self.closed:
            return
        self.transport = None
        self._connected = asyncio.get_running_loop().create_future()
        # Mark an exception as seen, since there may be no call that waits for it.
        self._connected.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        """Try all nodes until one accepts the client; calls wait at most `reconnect_s` for it."""
        loop = asyncio.get_running_loop()
        patience = loop.call_later(self.reconnect_s, self._on_reconnect_timeout)
        backoff_s = 0.02
        try:
            while not await self._try_every_node():
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, 1.0)
        except asyncio.CancelledError:
            # The event loop is ending: fail all waiting calls, which would otherwise wait for ever.
            self._fail_pending(Unavailable("the client was closed"))
            raise
        except TidegateError as error:
            self._fail_pending(error)  # a node rejected this client: trying again would not help
            return
        finally:
            patience.cancel()
        self.outage = None
        self._listener.on_resumed()

    async def _try_every_node(self) -> bool:
        for host, port in self._nodes:
            try:
                await self._connect(host, port)
            except RetryLater as error:
                self._last_failure = str(error)
            else:
                return True
        return False

    def _on_reconnect_timeout(self) -> None:
        waited = f"{self.reconnect_s:g} s"
        self._fail_pending(Unavailable(f"no connection for {waited}: {self._last_failure}"))

    def _fail_pending(self, error: TidegateError) -> None:
        """Fail pending requests with `error`, and new ones until a transport is established."""
        self.outage = error
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
        self._listener.on_outage(error)

    async def connected(self) -> Transport:
        """Return the current transport, and wait for one if necessary.

        Raise the error of an outage, if there is one.
        """
        transport = self.transport
        if transport is not None and transport.alive and not self.closed:
            return transport
        if self.outage is not None:
            raise self.outage
        if self._connected is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        if self._connected.done():
            # The transport has just failed: let `_on_transport_lost` run, which creates a new
            # future.
            await asyncio.sleep(0)
        return await asyncio.shield(self._connected)

    async def _send_heartbeats(self) -> None:
        """Ping every 10 s; abort a transport that has been silent for three intervals."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            transport = self.transport
            if transport is None or not transport.alive:
                continue
            if loop.time() - transport.heard_at > 3 * _HEARTBEAT_S:
                transport.abort()
                continue
            transport.submit(Ping(), None, lambda answer, body: None)

    async def request(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None = None,
        *,
        repeatable: bool = True,
    ) -> Response:
        """Send a request until an answer comes, for at most `reconnect_s` seconds.

        With `repeatable=False`, a request whose answer was lost is not sent again; it raises
        `IoFailure`. After one of `TRANSIENT_ERRORS` the request is sent again in either case.
        """
        backoff_s = 0.02
        deadline = asyncio.get_running_loop().time() + self.reconnect_s
        while True:
            transport = await self.connected()
            try:
                return await transport.request(packet, bodies)
            except IoFailure:
                if not repeatable or asyncio.get_running_loop().time() > deadline:
                    raise
                # Either this transport failed, and `connected` waits for the next; or a node behind
                # it failed.
                await asyncio.sleep(backoff_s if transport.alive else 0.0)
            except TRANSIENT_ERRORS:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 0.5)


def _client_of(answered: Response) -> ClientInfo:
    packet = answered.packet
    assert isinstance(packet, RegisterClientResponse | IdentifyClientResponse)
    return packet.client


def default_client_name() -> str:
    """Return a name for a client that was given none.

    The part before the @ is the program, so that telemetry recognises a client after a restart.
    """
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.stem == "__main__" else path.stem
    # Replace characters that end the program's part of the name, and limit its length.
    program = re.sub(r"[#@\s]", "-", program)[:64] or "python"
    return f"{program}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


# One transport to a node: requests with their answers, and pushes.


# Ids have 32 bits; nodes that relay requests use the highest bit.
_PACKET_ID_MASK = 0x7FFF_FFFF


class Response:
    """The answer to a request: a packet and its body."""

    __slots__ = ("body", "packet")

    def __init__(self, packet: Packet, body: bytes | memoryview) -> None:
        self.packet = packet
        self.body = body


class Transport(asyncio.Protocol):
    """A TCP or TLS transport with many requests in flight.

    Every request ends exactly once: with the node's answer, or with `IoFailure` when the transport
    closes. Pushes go to `on_push`. `on_lost` is called once, after all requests have ended.
    """

    def __init__(
        self, on_push: Callable[[Packet, memoryview], None], on_lost: Callable[[Transport], None]
    ) -> None:
        self._wire = ProtocolConnection(server=False)
        self._transport: asyncio.Transport | None = None
        self._responses: dict[int, Callable[[Packet | TidegateError, memoryview], None]] = {}
        self._packet_ids = count(1)
        self._on_push = on_push
        self._on_lost = on_lost
        self.alive = False
        self.heard_at = 0.0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        on_push: Callable[[Packet, memoryview], None],
        on_lost: Callable[[Transport], None],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> Transport:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, transport = await loop.create_connection(
                    lambda: cls(on_push, on_lost), host, port, ssl=tls
                )
        except ssl.SSLCertVerificationError as failure:
            # A retry would not help. Ignoring the certificate would let an attacker read the
            # connection.
            raise NotAuthenticated(
                f"the certificate of {host}:{port} is not to be trusted "
                f"({failure.verify_message}): name its authority's file with ca_file= or "
                "TIDEGATE_CA_FILE"
            ) from None
        except (UnicodeError, ValueError) as failure:
            raise InvalidValue(f"{host!r} is no host: {failure}") from None
        except ssl.SSLError as failure:
            raise Unavailable(
                f"{host}:{port} does not speak TLS as we do ({failure.reason or failure}): is it "
                "a tidegate:// node?"
            ) from None
        except (OSError, TimeoutError) as failure:
            raise Unavailable(
                f"nothing answers at {host}:{port} ({failure or 'timed out'}): is a node running "
                "there? `tidegate up` starts one"
            ) from None
        return transport

    # Callbacks of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.alive = True
        self.heard_at = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._wire.close()
        asked, self._responses = self._responses, {}
        lost = IoFailure("the connection to the node was lost; the outcome is not known")
        for done in asked.values():
            done(lost, memoryview(b""))
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            for event in self._wire.receive(data):
                if not isinstance(event, ReceivedPacket):
                    continue
                packet = event.packet
                if isinstance(packet, Push):
                    self._on_push(packet, event.body)  # type: ignore[arg-type]
                    continue
                done = self._responses.pop(event.packet_id, None)
                if done is not None:
                    if isinstance(packet, Error):
                        done(from_code(packet.code, packet.text), event.body)  # type: ignore[arg-type]
                    else:
                        done(packet, event.body)  # type: ignore[arg-type]
        except TidegateError:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Sending

    def post(self, packet: Packet, bodies: list[memoryview | bytes] | None = None) -> None:
        """Send a packet that has no answer; drop it if the transport is closed."""
        if self.alive and self._transport is not None:
            self._transport.writelines(self._wire.send(packet, self._next_packet_id(), bodies))

    def _next_packet_id(self) -> int:
        return next(self._packet_ids) & _PACKET_ID_MASK

    def submit(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None,
        done: Callable[[Packet | TidegateError, memoryview], None],
    ) -> int:
        """Send a request and return its packet id; `done` receives the answer or an error.

        On a closed transport, `done` receives `Unavailable` at once and the id is 0.
        """
        if not self.alive or self._transport is None:
            done(Unavailable("not connected"), memoryview(b""))
            return 0
        packet_id = self._next_packet_id()
        # Encode first: if encoding raises, no request may stay registered.
        pieces = self._wire.send(packet, packet_id, bodies)
        self._responses[packet_id] = done
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        return packet_id

    async def request(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None = None,
        *,
        abandoned: Callable[[int, Packet | None], None] | None = None,
    ) -> Response:
        """Send a request and wait for its answer.

        If the caller is cancelled, `abandoned` is called with the packet id and the answer, or with
        the packet id and `None` if no answer has come. In the second case it is called again when
        the answer comes.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def done(answer: Packet | TidegateError, body: memoryview) -> None:
            if future.done():
                if abandoned is not None and not isinstance(answer, TidegateError):
                    abandoned(packet_id, answer)
            elif isinstance(answer, TidegateError):
                future.set_exception(answer)
            else:
                future.set_result(Response(answer, body))

        packet_id = self.submit(packet, bodies, done)
        try:
            return await future
        except asyncio.CancelledError:
            if abandoned is not None:
                answered = future.done() and not future.cancelled() and not future.exception()
                abandoned(packet_id, future.result().packet if answered else None)
            raise


# Logging in with SCRAM: two round trips that do not send the password.


async def log_in(transport: Transport, credentials: Credentials) -> None:
    """Log in on a transport; raise `NotAuthenticated` if either side rejects the other."""
    login = ClientLogin(credentials.user, credentials.password)
    challenge = (await transport.request(Authenticate(login.first()))).packet
    assert isinstance(challenge, AuthenticateResponse)
    # Hashing takes milliseconds and would block the event loop.
    proof = await asyncio.to_thread(login.proof, challenge.message)
    signature = (await transport.request(Prove(proof))).packet
    assert isinstance(signature, ProveResponse)
    login.check(signature.message)
