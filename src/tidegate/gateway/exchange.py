"""One request's way to a server and its answer's way back, over as many attempts as are safe.

    electing ─▶ (in line) ─▶ connecting ─▶ sent ─▶ answering ─▶ done
        ▲_________________________│___________│
             another server, if nothing was sent or doing it twice is as good as once

Once the client has seen a byte of an answer there is no second attempt: what fails then breaks off,
and the client sees that it did. Of a body only so much is held as may be sent again.
"""

from __future__ import annotations

import asyncio
from time import monotonic, time
from typing import TYPE_CHECKING

from tidegate.core.hosting import instance_of
from tidegate.gateway.forwarding import request_to_server, response_to_client
from tidegate.gateway.own_shortage import is_own_shortage
from tidegate.gateway.refusal import Refusal
from tidegate.gateway.request_head import RequestHead
from tidegate.gateway.response_reader import BadAnswer, ResponseHead
from tidegate.gateway.server import Server
from tidegate.gateway.server_connection import ServerConnection

if TYPE_CHECKING:
    from tidegate.gateway.client_connection import ClientConnection
    from tidegate.gateway.front import Front

# What a server in turn says of servers behind it; other errors are the application's own.
_FAILED_STATUSES = frozenset((502, 504))


class Exchange:
    """What stands between one client's request and one server's answer."""

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

    def __init__(self, client: ClientConnection, front: Front, head: RequestHead) -> None:
        self._client = client
        self._front = front
        self.head = head
        # The leader's own question: it counts nowhere.
        self.is_probe = front.is_probe(head)
        self.request_done = False
        self.answer_started = False
        self.keep_alive = head.keep_alive
        self.tunnel = False
        # Servers that this request has failed on.
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
        # The body so far, framed as it goes out.
        self._replay: list[bytes] = []
        self._replay_bytes = 0
        self._replayable = True
        self._retries_left = front.limits.retries_max
        self._body_bytes = 0
        self._chunked_answer = False
        self._status = 0
        # How many of the two that talk have said all.
        self._tunnel_ends = 0
        self._started_at = self._progress_at = self._sent_at = self._chosen_at = monotonic()
        # Whether the body is its client's turn; not while that waits for 100 Continue.
        self._body_awaited = not head.expects_continue
        # How long we have not read the body, for want of somebody to take it.
        self._paused_s = 0.0
        self._paused_at: float | None = None
        # In line for a server; None: it has one, or needs none.
        self._waiting_since: float | None = None

    @property
    def unanswered_since(self) -> float | None:
        """Since when its client waits; None: it has an answer, or has not asked to its end."""
        if self.answer_started or self._done or not self.request_done:
            return None
        return self._started_at

    # From the client.

    def start(self) -> None:
        try:
            self._attempt(fresh=False)
        except Refusal as refusal:
            self._refuse(refusal)

    def elect_anew(self) -> None:
        """The server that it stood in line for is none any more."""
        self._waiting_since = None
        self.start()

    def take(self, server: Server) -> None:
        """It stood in line, and this server has room for it."""
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
        """The client's bytes make no sense: the server hears no more of it."""
        self._finish(whole=False, tell_client=False)

    def client_lost(self) -> None:
        """Nobody waits for the answer any more."""
        self._finish(whole=False)

    def client_is_full(self) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def client_has_room(self) -> None:
        self._progress_at = monotonic()
        if self._connection is not None:
            self._connection.resume_reading()

    # To a server.

    def _attempt(self, *, fresh: bool) -> None:
        server = self._front.elect(self, self._client)
        if server is None:
            self._waiting_since = monotonic()
            self._hold_body()
        else:
            self._go_to(server, fresh=fresh)

    def _hold_body(self) -> None:
        # Up to there it is read on, so that a client that hangs up is noticed and leaves the line.
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
                # Nothing is tried elsewhere: a session would be lost for it.
                self._leave(server, failed=False)
                self._refuse(self._front.shed(f"no connection can be opened ({failure.strerror})"))
                return
            why = f"cannot connect to {server.name}: {failure or 'timed out'}"
            server.meters.failed.add(1)
            # What is wrong where it was says nothing of where it is.
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

    # From the server.

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
                raise BadAnswer("a switch of protocols that nobody asked for")
            self.answer_started = self.tunnel = True
            out.append(self._to_client(head, chunked=False))
            return
        bodiless = self.head.method == b"HEAD" or head.status in (204, 304)
        unframed = not bodiless and head.content_length is None
        self._chunked_answer = unframed and self.head.minor == 1
        if (
            (unframed and not self._chunked_answer)
            # What the client is still sending belongs to no other request.
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
        """All that one read from the server has brought."""
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
            # Its question is answered: that two talk on is no request in hand, however many do.
            self._front.leave(self)
            if rest:
                self._client.send(rest)
        elif complete:
            self._finish(whole=True)

    def server_failed(self, why: str) -> None:
        """The connection is gone, and the answer is not complete."""
        connection, self._connection = self._connection, None
        server = self._server
        if server is None or connection is None:
            return
        # A server may hang up on a connection that nobody uses; that we just did is no fault.
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
        """The server is taken away, with no fault of its own; nothing is tried again."""
        self._connection = None
        self._too_late(Refusal(503, "the server had to go", retry_after_s=1))

    def server_is_full(self) -> None:
        self._pause_client()

    def server_has_room(self) -> None:
        self._resume_client()

    # Another attempt, or the end.

    def _again_or(self, refusal: Refusal, *, fresh: bool = False) -> None:
        may_repeat = not self._sent or (self.head.idempotent and self._replayable)
        if self._done:
            return
        # A session is elected anew once; who has failed it twice has failed.
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
        # What of the body has been read already is dropped with this exchange; what is still to
        # come would be taken for a request.
        self.keep_alive = keep_alive and not self.head.has_body
        self.answer_started = True
        if not self.is_probe:
            self._front.count_refusal(refusal)
            self._sample(refusal.status, None, monotonic())
        self._client.send_refusal(refusal, self.head.method, keep_alive=self.keep_alive)
        self._finish(whole=False)

    def _break_off(self, *, by_server: bool) -> None:
        # Two that talk may stop when they like.
        if by_server and not (self.tunnel or self.is_probe):
            self._front.broken_off += 1
        # Anything but an abrupt end could pass for a whole answer.
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
            # It lasted as long as people talked, which says nothing about the server.
            return
        now = monotonic()
        meters.response_time.add(now - self._sent_at)
        self._front.response_time.add(now - self._started_at)
        self._sample(self._status, server, now)
        if self._status >= 500:
            meters.server_errors.add(1)

    def _sample(self, status: int, server: Server | None, now: float) -> None:
        """One in many requests is recorded, with where its time went."""
        samples = self._front.request_samples
        if samples is None:
            return
        samples.skip -= 1
        if samples.skip > 0:
            return
        # What was never sent spent all its time here.
        sent_at = self._sent_at if self._sent else now
        chosen_at = min(self._chosen_at, sent_at) if self._sent else now
        samples.take(
            self.head.method.decode("ascii", "replace"),
            status,
            None if server is None else instance_of(server.name),
            (self._started_at, chosen_at, sent_at, now),
        )

    # A tunnel, after 101.

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
            # Each keeps its side open until we close ours.
            if self._connection is not None:
                self._connection.close_tunnel(self._front.limits.send_stall_s)
            self.tunnel_over()

    def tunnel_over(self) -> None:
        self.keep_alive = False
        self._connection = None
        self._finish(whole=True)

    # Time.

    def _await_body(self) -> None:
        """It is asked for, or comes unasked: its time begins."""
        if not self._body_awaited:
            self._body_awaited = True
            self._paused_s = monotonic() - self._started_at

    def _pause_client(self) -> None:
        if self._paused_at is None:
            # What its server owes us counts from now: as long as the body came, nothing was due.
            self._paused_at = self._progress_at = monotonic()
        self._client.hold_for_server()

    def _resume_client(self) -> None:
        if self._paused_at is not None:
            self._paused_s += monotonic() - self._paused_at
            self._paused_at = None
        self._progress_at = monotonic()
        self._client.go_on_for_server()

    def check_time(self, now: float) -> None:
        """Called a few times a second, as long as it lasts."""
        limits = self._front.limits
        if self.tunnel:
            # Who listens on to one that has said all does so no longer than to an answer.
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
            # A body that comes too slowly is its client's own doing, whoever has answered already.
            self._break_off(by_server=refusal.status >= 500)
        else:
            self._refuse(refusal)
