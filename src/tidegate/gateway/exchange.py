"""One proxied request: its way to a server and the response's way back, over safe attempts.

Theory of operation
-------------------

    electing ─▶ (waiting) ─▶ connecting ─▶ sent ─▶ answering ─▶ done
        ▲_________________________│___________│
             another server, if nothing was sent or the request is idempotent

`ClientConnection` creates a `ProxiedRequest` for each request head and calls it with the body.
`ServerConnection` calls it with the response. Both call it when their side is full or has ended,
and the sweep calls `check_time`. All of this happens in the event loop's thread.

- A failed attempt is repeated only if no byte was sent, or if the method is idempotent and its body
  is still buffered. At most `replay_bytes_max` of a body are buffered for this.
- After the first byte of a response there is no second attempt. A failure then aborts the client's
  connection, because a clean end could pass for a complete response.
- A failed connect or response counts against the server. Two failures do not: a shortage of
  descriptors, ports or memory in the gateway, and a reused connection that the server had closed.
- A request of a session goes to another server only once; the session then moves.
- A probe of the leader is handled like any request, but not counted.
- After a 101 response the exchange is a tunnel: bytes pass in both directions, and it no longer
  counts as a request in hand.

Each request ends exactly once, in `_finish`. It releases or closes the server's connection, frees
its place on the server, and tells the client connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from time import monotonic, time
from typing import TYPE_CHECKING

from tidegate.core.services import instance_of_backend
from tidegate.gateway.http1 import BadResponse, Refusal, RequestHead, ResponseHead, without_sticky
from tidegate.gateway.servers import Server, ServerConnection, is_own_shortage

if TYPE_CHECKING:
    from tidegate.gateway.client_connection import ClientConnection
    from tidegate.gateway.gateway import GatewayState


# Statuses by which a server reports a failure behind it; other errors are the application's.
_FAILED_STATUSES = frozenset((502, 504))


class ProxiedRequest:
    """One client's request, its attempts, and its response."""

    __slots__ = (
        "_body_awaited",
        "_body_bytes",
        "_chosen_at",
        "_chunked_answer",
        "_client",
        "_connecting",
        "_connection",
        "_done",
        "_front",
        "_paused_at",
        "_paused_s",
        "_progress_at",
        "_replay",
        "_replay_bytes",
        "_replayable",
        "_retries_left",
        "_sent",
        "_sent_at",
        "_server",
        "_started_at",
        "_status",
        "_tunnel_ends",
        "_waiting_since",
        "answer_started",
        "head",
        "is_probe",
        "keep_alive",
        "request_done",
        "set_cookie",
        "sticky_to",
        "tried",
        "tunnel",
    )

    def __init__(self, client: ClientConnection, front: GatewayState, head: RequestHead) -> None:
        self._client = client
        self._front = front
        self.head = head
        # The leader's probe, which is not counted.
        self.is_probe = front.is_probe(head)
        self.request_done = False
        self.answer_started = False
        self.keep_alive = head.keep_alive
        self.tunnel = False
        # Servers on which this request has failed.
        self.tried: set[str] = set()
        # The session's server, and the cookie that names a new one.
        self.sticky_to: str | None = None
        self.set_cookie: bytes | None = None
        self._server: Server | None = None
        self._connection: ServerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._done = False
        # Whether any byte of this request may have reached a server.
        self._sent = False
        # The body so far, framed as it is sent.
        self._replay: list[bytes] = []
        self._replay_bytes = 0
        self._replayable = True
        self._retries_left = front.limits.retries_max
        self._body_bytes = 0
        self._chunked_answer = False
        self._status = 0
        # How many of the two sides of a tunnel have ended.
        self._tunnel_ends = 0
        self._started_at = self._progress_at = self._sent_at = self._chosen_at = monotonic()
        # Whether the client is expected to send the body; not while it waits for 100 Continue.
        self._body_awaited = not head.expects_continue
        # Seconds for which the body was not read because no server took it.
        self._paused_s = 0.0
        self._paused_at: float | None = None
        # Since when it waits for a server; None if it does not wait.
        self._waiting_since: float | None = None

    @property
    def unanswered_since(self) -> float | None:
        """Since when the client waits for a response; None if it has one or is still sending."""
        if self.answer_started or self._done or not self.request_done:
            return None
        return self._started_at

    # Called by the client connection

    def start(self) -> None:
        try:
            self._attempt(fresh=False)
        except Refusal as refusal:
            self._refuse(refusal)

    def elect_anew(self) -> None:
        """Choose another server, because the one it waited for is gone."""
        self._waiting_since = None
        self.start()

    def take(self, server: Server) -> None:
        """Use this server, which has room, after waiting."""
        self._waiting_since = None
        self._chosen_at = monotonic()
        self._go_to(server, fresh=False)

    def body(self, part: bytes) -> None:
        self._await_body()
        self._body_bytes += len(part)
        self._pass(b"%x\r\n%b\r\n" % (len(part), part) if self.head.chunked else part)

    def body_end(self) -> None:
        self.request_done = True
        self._progress_at = monotonic()
        if self.head.chunked:
            self._pass(b"0\r\n\r\n")

    def refuse(self, refusal: Refusal) -> None:
        self._refuse(refusal)

    def abandon(self) -> None:
        """Drop the request because the client's bytes are invalid; the server gets nothing more."""
        self._finish(whole=False, tell_client=False)

    def client_lost(self) -> None:
        """End the request because the client has disconnected."""
        self._finish(whole=False)

    def client_is_full(self) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def client_has_room(self) -> None:
        self._progress_at = monotonic()
        if self._connection is not None:
            self._connection.resume_reading()

    # To a server

    def _attempt(self, *, fresh: bool) -> None:
        server = self._front.elect(self, self._client)
        if server is None:
            self._waiting_since = monotonic()
            self._hold_body()
        else:
            self._go_to(server, fresh=fresh)

    def _hold_body(self) -> None:
        # Read on up to the limit, so that a disconnected client is noticed and leaves the queue.
        if self._replay_bytes > self._front.limits.replay_bytes_max and not self.request_done:
            self._pause_client()

    def _go_to(self, server: Server, *, fresh: bool) -> None:
        self._server = server
        server.begin()
        connection = None if fresh else server.take_idle()
        if connection is not None:
            self._send(connection)
            if self._paused_at is not None and not connection.writing_paused:
                self._resume_client()
            return
        if self.head.has_body:
            self._pause_client()
        self._connecting = self._front.loop.create_task(self._connect(server))

    async def _connect(self, server: Server) -> None:
        address = server.address
        try:
            connection = await self._front.connect(server)
        except OSError as failure:  # a TimeoutError is one, too
            self._connecting = None
            if is_own_shortage(failure):
                # Do not try another server: the session would be lost for a shortage of our own.
                self._leave(server, failed=False)
                self._refuse(self._front.shed(f"no connection can be opened ({failure.strerror})"))
                return
            why = f"cannot connect to {server.name}: {failure or 'timed out'}"
            server.meters.failed.add(1)
            # Count it only if the server still has the address that failed.
            if server.is_at(address):
                self._front.refused(server, why)
            self._leave(server)
            self._again_or(Refusal(502, "no server could be reached"))
            return
        self._connecting = None
        self._send(connection)
        if not connection.writing_paused:
            self._resume_client()

    def _send(self, connection: ServerConnection) -> None:
        server = connection.server
        try:
            data = request_to_server(
                self.head,
                self._client.peer,
                self._front.token,
                server.host_field,
                sticky=self._front.sessions is not None,
            )
        except Refusal as refusal:
            connection.release(self._front.limits.pool_idle_max)
            self._leave(server)
            self._refuse(refusal)
            return
        self._connection = connection
        self._sent = True
        self._sent_at = self._progress_at = monotonic()
        server.meters.sent.add(1)
        server.meters.out_bytes.add(self._replay_bytes)
        if self._replay:
            data = b"".join((data, *self._replay))
        if not self.head.idempotent:
            self._forget_body()
        connection.send_head(self, self.head.method, data)

    def _pass(self, framed: bytes) -> None:
        if self._done:
            return
        connection = self._connection
        if connection is not None:
            connection.send(framed)
            connection.server.meters.out_bytes.add(len(framed))
            if not self._replayable:
                return
            if self._replay_bytes + len(framed) > self._front.limits.replay_bytes_max:
                self._forget_body()
                return
        self._replay.append(framed)
        self._replay_bytes += len(framed)
        if self._waiting_since is not None:
            self._hold_body()

    def _forget_body(self) -> None:
        self._replayable = not self.head.has_body
        self._replay.clear()
        self._replay_bytes = 0

    # From the server

    def answer_head(self, head: ResponseHead, out: list[bytes]) -> None:
        client = self._client
        if head.interim:
            if head.status == 100:
                self._await_body()
            if self.head.minor == 1:
                out.append(self._to_client(head, chunked=False))
            return
        self._status = head.status
        if head.status == 101:
            if not self.head.websocket or head.upgrade.lower() != b"websocket":
                raise BadResponse("a switch of protocols that nobody asked for")
            self.answer_started = self.tunnel = True
            out.append(self._to_client(head, chunked=False))
            return
        bodiless = self.head.method == b"HEAD" or head.status in (204, 304)
        unframed = not bodiless and head.content_length is None
        self._chunked_answer = unframed and self.head.minor == 1
        if (
            (unframed and not self._chunked_answer)
            # The client is still sending a body, so the next bytes are no new request.
            or not self.request_done
            or self._front.stopping
            or client.half_closed
        ):
            self.keep_alive = False
        self.answer_started = True
        out.append(self._to_client(head, chunked=self._chunked_answer))

    def _to_client(self, head: ResponseHead, *, chunked: bool) -> bytes:
        return response_to_client(
            head,
            self.head.method,
            client_minor=self.head.minor,
            keep_alive=self.keep_alive,
            chunked=chunked,
            set_cookie=self.set_cookie,
            now_s=time(),
        )

    def answer_part(self, part: bytes, out: list[bytes]) -> None:
        if self._chunked_answer:
            out += (b"%x\r\n" % len(part), part, b"\r\n")
        else:
            out.append(part)

    def answered(self, out: list[bytes], *, complete: bool) -> None:
        """Send what one read from the server has brought, and finish if it was the end."""
        self._progress_at = monotonic()
        if complete and self._chunked_answer:
            out.append(b"0\r\n\r\n")
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            if self._server is not None:
                self._server.meters.in_bytes.add(len(data))
            self._client.send(data)
        if self.tunnel and self._connection is not None:
            rest = self._connection.become_tunnel()
            self._client.become_tunnel()
            # The request is answered; tunnels do not count as requests in hand.
            self._front.remove(self)
            if rest:
                self._client.send(rest)
        elif complete:
            self._finish(whole=True)

    def server_failed(self, why: str) -> None:
        """Handle a lost connection with an incomplete response: repeat, reject or abort."""
        connection, self._connection = self._connection, None
        server = self._server
        if server is None or connection is None:
            return
        # A server may close an idle connection at any time; reusing it just then is no failure.
        stale = connection.reused and not connection.answering
        if not stale:
            server.meters.failed.add(1)
            if server.is_at(connection.address):
                self._front.failed(server, why)
        self._leave(server, failed=not stale)
        if self.answer_started:
            self._break_off(by_server=True)
        else:
            self._again_or(Refusal(502, "the server broke off"), fresh=stale)

    def cut_off(self) -> None:
        """End the request without a repetition, because its server is removed."""
        self._connection = None
        self._too_late(Refusal(503, "the server had to go", retry_after_s=1))

    def server_is_full(self) -> None:
        self._pause_client()

    def server_has_room(self) -> None:
        self._resume_client()

    # Another attempt, or the end

    def _again_or(self, refusal: Refusal, *, fresh: bool = False) -> None:
        may_repeat = not self._sent or (self.head.idempotent and self._replayable)
        if self._done:
            return
        # A session moves once; after a second failure the request has failed.
        if not may_repeat or self._retries_left <= 0:
            self._refuse(refusal)
            return
        self._retries_left -= 1
        if self.sticky_to is not None and not fresh:
            self._retries_left = 0
        try:
            self._attempt(fresh=fresh)
        except Refusal:
            self._refuse(refusal)

    def _leave(self, server: Server, *, failed: bool = True) -> None:
        self._server = None
        if failed:
            self.tried.add(server.name)
        server.end()
        self._front.room_at(server)

    def _refuse(self, refusal: Refusal) -> None:
        keep_alive = not refusal.close and self.head.keep_alive and not self._front.stopping
        # The part of the body that was read is discarded. The rest would be taken for a new
        # request, so the connection is closed if there is a body.
        self.keep_alive = keep_alive and not self.head.has_body
        self.answer_started = True
        if not self.is_probe:
            self._front.count_refusal(refusal)
            self._sample(refusal.status, None, monotonic())
        self._client.send_refusal(refusal, self.head.method, keep_alive=self.keep_alive)
        self._finish(whole=False)

    def _break_off(self, *, by_server: bool) -> None:
        # The end of a tunnel is no failure.
        if by_server and not (self.tunnel or self.is_probe):
            self._front.broken_off += 1
        # Any other end could pass for a complete response.
        self._finish(whole=False, tell_client=False)
        self._client.abort()

    def _finish(self, *, whole: bool, tell_client: bool = True) -> None:
        if self._done:
            return
        self._done = True
        if self._waiting_since is not None:
            self._front.waiting.leave(self)
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        server, self._server = self._server, None
        if connection is not None:
            if whole and self.request_done:
                connection.release(self._front.limits.pool_idle_max)
            else:
                connection.close()
        if server is not None:
            if whole:
                self._count(server)
            server.end()
            self._front.room_at(server)
        self._replay.clear()
        if tell_client:
            self._client.exchange_done(keep_alive=self.keep_alive)
        else:
            self._client.exchange_dropped()

    def _count(self, server: Server) -> None:
        if not self.is_probe:
            self._measure(server)
        if self.tunnel:
            return
        if self._status in _FAILED_STATUSES:
            self._front.failed(server, f"it answered {self._status}")
        else:
            server.ejection.succeeded()

    def _measure(self, server: Server) -> None:
        meters = server.meters
        meters.answered.add(1)
        self._front.answered += 1
        self._front.classes[min(self._status // 100, 5)] += 1
        if self.tunnel:
            # A tunnel lasts as long as its users need, which says nothing about the server.
            return
        now = monotonic()
        meters.response_time.add(now - self._sent_at)
        self._front.response_time.add(now - self._started_at)
        self._sample(self._status, server, now)
        if self._status >= 500:
            meters.server_errors.add(1)

    def _sample(self, status: int, server: Server | None, now: float) -> None:
        """Record one in many requests with the time it spent in each phase."""
        samples = self._front.request_samples
        if samples is None:
            return
        samples.skip -= 1
        if samples.skip > 0:
            return
        # A request that was never sent spent all its time in the gateway.
        sent_at = self._sent_at if self._sent else now
        chosen_at = min(self._chosen_at, sent_at) if self._sent else now
        samples.take(
            self.head.method.decode("ascii", "replace"),
            status,
            None if server is None else instance_of_backend(server.name),
            (self._started_at, chosen_at, sent_at, now),
        )

    # A tunnel, after 101

    def tunnel_from_client(self, data: bytes) -> None:
        self._progress_at = monotonic()
        if self._connection is not None:
            self._connection.send(data)

    def tunnel_from_server(self, data: bytes) -> None:
        self._progress_at = monotonic()
        self._client.send(data)

    def tunnel_eof_from_server(self) -> None:
        self._client.send_eof()
        self._tunnel_end()

    def tunnel_eof_from_client(self) -> None:
        if self._connection is not None:
            self._connection.send_eof()
        self._tunnel_end()

    def _tunnel_end(self) -> None:
        self._progress_at = monotonic()
        self._tunnel_ends += 1
        if self._tunnel_ends == 2:
            # Each side stays open until we close ours.
            if self._connection is not None:
                self._connection.close_tunnel(self._front.limits.send_stall_s)
            self.tunnel_over()

    def tunnel_over(self) -> None:
        self.keep_alive = False
        self._connection = None
        self._finish(whole=True)

    # Timeouts

    def _await_body(self) -> None:
        """Start the time for the body, when it is requested or comes without a request."""
        if not self._body_awaited:
            self._body_awaited = True
            self._paused_s = monotonic() - self._started_at

    def _pause_client(self) -> None:
        if self._paused_at is None:
            # While the body came, no response was due: the server's time starts now.
            self._paused_at = self._progress_at = monotonic()
        self._client.hold_for_server()

    def _resume_client(self) -> None:
        if self._paused_at is not None:
            self._paused_s += monotonic() - self._paused_at
            self._paused_at = None
        self._progress_at = monotonic()
        self._client.go_on_for_server()

    def check_time(self, now: float) -> None:
        """Check the timeout of the current phase; called a few times a second."""
        limits = self._front.limits
        if self.tunnel:
            # After one side of a tunnel has ended, the other has only the time of a response.
            idle_s = limits.answer_stall_s if self._tunnel_ends else limits.tunnel_idle_s
            if now > self._progress_at + idle_s and self._client.takes_nothing(now):
                self._break_off(by_server=False)
        elif limits.deadline_s is not None and now > self._started_at + limits.deadline_s:
            if self._sent and self.request_done and not self.answer_started:
                self._server_hangs()
            self._too_late(Refusal(504, f"not answered within {limits.deadline_s:g} s"))
        elif self._waiting_since is not None and now > self._waiting_since + limits.wait_s:
            self._refuse(self._front.shed(f"no server had room within {limits.wait_s:g} s"))
        elif not self.request_done and self._body_awaited and self._paused_at is None:
            earned_s = self._body_bytes / limits.body_bytes_per_s_min
            until = self._started_at + limits.body_grace_s + self._paused_s + earned_s
            if now > until:
                self._too_late(Refusal(408, "the body came too slowly"))
        elif not self.answer_started:
            waiting = self._waiting_since is not None
            if self._sent and not waiting and now > self._progress_at + limits.answer_timeout_s:
                self._server_hangs()
                self._too_late(Refusal(504, "the server did not answer in time"))
        elif self._client.writing_paused:
            if self._client.takes_nothing(now):
                self._break_off(by_server=False)
        elif now > self._progress_at + limits.answer_stall_s:
            self._server_hangs()
            self._break_off(by_server=True)

    def _server_hangs(self) -> None:
        server, connection = self._server, self._connection
        if server is not None:
            server.meters.failed.add(1)
            if connection is None or server.is_at(connection.address):
                self._front.failed(server, "it did not answer in time")

    def _too_late(self, refusal: Refusal) -> None:
        if self.answer_started:
            # A body that comes too slowly is the client's failure, also if the server has answered.
            self._break_off(by_server=refusal.status >= 500)
        else:
            self._refuse(refusal)


# The heads that are sent to servers and clients, written from their parsed parts.
#
# `X-Forwarded-For`, `-Proto` and `-Host` tell the server who the client is. Values that a peer
# sends
# in these fields or in `Forwarded` count only if the peer is trusted. Otherwise they are dropped,
# also if spelled with underscores, which many applications cannot tell from dashes.
#
# `LoadBalanced` names the gateways that a request has passed. A gateway that finds its own name
# there
# has received its own request, and rejects it (508).


_VIA = b"Via: 1.1 tidegate\r\n"
# More gateways in a chain than any sensible setup has.
_HOPS_MAX = 8
_TOLD_BY_PROXIES = (b"x-forwarded-", b"x-real-ip", b"forwarded", b"true-client-ip")


@dataclass(frozen=True)
class ClientPeer:
    """The other end of a client's connection."""

    address: str
    trusted: bool


class TrustedPeers:
    """Networks that are trusted to say who the client is."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(one) for one in networks]

    def peer(self, address: str) -> ClientPeer:
        try:
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            return ClientPeer("unknown", False)
        return ClientPeer(str(ip), any(ip in network for network in self._networks))


def request_to_server(
    head: RequestHead, peer: ClientPeer, gateway: bytes, server_host: bytes, *, sticky: bool
) -> bytes:
    """Return the head for a server; raise `Refusal` if the request passed here before."""
    parts = [
        b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method, head.target, head.host or server_host)
    ]
    told: dict[bytes, bytes] = {}
    for name, lower, value in head.fields:
        # Few fields begin with these letters, so one byte decides for most of them.
        if lower[0] in b"xft_" and _told_by_proxy(lower):
            if peer.trusted and b"_" not in lower:
                told[lower] = told[lower] + b", " + value if lower in told else value
            continue
        parts.append(b"%b: %b\r\n" % (name, value))
    if head.cookies:
        cookies = without_sticky(head.cookies) if sticky else b"; ".join(head.cookies)
        if cookies:
            parts.append(b"Cookie: %b\r\n" % cookies)
    parts.append(_forwarded(head, peer, told, server_host))
    parts.append(b"LoadBalanced: %b\r\n" % _balanced(head.balanced_by, gateway))
    parts.append(_VIA)
    if head.chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    elif head.content_length is not None:
        parts.append(b"Content-Length: %d\r\n" % head.content_length)
    parts.append(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" if head.websocket else b"\r\n"
    )
    return b"".join(parts)


def response_to_client(
    head: ResponseHead,
    method: bytes,
    *,
    client_minor: int,
    keep_alive: bool,
    chunked: bool,
    set_cookie: bytes | None,
    now_s: float,
) -> bytes:
    """Return the head for a client."""
    parts = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    parts += [b"%b: %b\r\n" % (name, value) for name, _, value in head.fields]
    if head.interim:
        return b"".join((*parts, b"\r\n"))
    if not head.has_date:
        parts.append(_date(int(now_s)))
    parts.append(_VIA)
    if set_cookie is not None:
        parts.append(b"Set-Cookie: %b\r\n" % set_cookie)
    if head.status == 101:
        parts.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % head.upgrade)
        return b"".join(parts)
    if chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    elif head.content_length is not None and head.status != 204:
        parts.append(b"Content-Length: %d\r\n" % head.content_length)
    if not keep_alive:
        parts.append(b"Connection: close\r\n\r\n")
    elif client_minor == 0:
        parts.append(b"Connection: keep-alive\r\n\r\n")
    else:
        parts.append(b"\r\n")
    return b"".join(parts)


def refusal_to_client(refusal: Refusal, method: bytes, *, keep_alive: bool, now_s: float) -> bytes:
    """Return a complete response of the gateway itself."""
    body = f"{refusal.status} {refusal.phrase}: {refusal.why}\n".encode()
    head = [
        b"HTTP/1.1 %d %b\r\n" % (refusal.status, refusal.phrase.encode()),
        b"Content-Type: text/plain; charset=utf-8\r\n",
        b"Content-Length: %d\r\n" % len(body),
        _date(int(now_s)),
        _VIA,
    ]
    if refusal.retry_after_s is not None:
        head.append(b"Retry-After: %d\r\n" % refusal.retry_after_s)
    head.append(b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")
    return b"".join(head) + (b"" if method == b"HEAD" else body)


def _told_by_proxy(lower: bytes) -> bool:
    return lower.replace(b"_", b"-").startswith(_TOLD_BY_PROXIES)


def _forwarded(
    head: RequestHead, peer: ClientPeer, told: dict[bytes, bytes], server_host: bytes
) -> bytes:
    address = peer.address.encode()
    before = told.pop(b"x-forwarded-for", None)
    chain = address if before is None else before + b", " + address
    told.setdefault(b"x-forwarded-proto", b"http")
    told.setdefault(b"x-forwarded-host", head.host or server_host)
    if b"forwarded" in told:
        node = b'"[%b]"' % address if b":" in address else address
        told[b"forwarded"] += b", for=%b;proto=http" % node
    rest = b"".join(b"%b: %b\r\n" % one for one in told.items())
    return b"X-Forwarded-For: %b\r\n%b" % (chain, rest)


def _balanced(before: bytes, gateway: bytes) -> bytes:
    if not before:
        return gateway
    passed = [one.strip() for one in before.split(b",")]
    if gateway in passed or len(passed) >= _HOPS_MAX:
        raise Refusal(508, "this request has been here before: a server's address is a gateway's")
    return before + b", " + gateway


@lru_cache(maxsize=2)
def _date(now_s: int) -> bytes:
    return b"Date: %b\r\n" % formatdate(now_s, usegmt=True).encode()
