"""A client's connection: one request after the other, each a `ProxiedRequest`.

The next request is not read until the response to the one before is complete. Reading may be paused
for several reasons at once (`ReadPause`), and resumes when the last one has ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Flag, auto
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from tidegate.gateway.exchange import ClientPeer, ProxiedRequest, refusal_to_client
from tidegate.gateway.http1 import END, Refusal, RequestHead, RequestReader

if TYPE_CHECKING:
    from tidegate.gateway.gateway import GatewayState


class ReadPause(Flag):
    """Reasons why a client is not read."""

    NONE = 0
    # Its server accepts no more data, or is not connected yet.
    SERVER = auto()
    # Its next request has arrived already.
    NEXT_REQUEST = auto()
    # It does not read its responses.
    ANSWERS = auto()
    # It was told to retry later, and the pause is not over.
    REFUSED = auto()


class ClientConnection(asyncio.Protocol):
    """Passes requests of one client to `ProxiedRequest`s, and their responses back."""

    def __init__(self, front: GatewayState) -> None:
        self._front = front
        limits = front.limits
        self._reader = RequestReader(limits.header_bytes_max, limits.body_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._exchange: ProxiedRequest | None = None
        self._read_pause = ReadPause.NONE
        # Ends ReadPause.REFUSED. This is a timer and not a check of the sweep: otherwise all
        # rejected clients would be read at the same moment, and come back together again.
        self._pause: asyncio.TimerHandle | None = None
        self._pumping = False
        self._tunnel = False
        # The last response is out; what the client still sends is discarded.
        self._lingering = False
        self._answered_any = False
        self.half_closed = False
        self.writing_paused = False
        # Unsent bytes at the last check, and since when they have been as many.
        self._unsent_bytes = 0
        self._unsent_since = 0.0
        self.peer = ClientPeer("unknown", False)
        self.name = ""
        # Time of the next check by the sweep, 0 for every sweep; see `GatewayState.sweep`.
        self.look_at = 0.0

    @property
    def idle(self) -> bool:
        return self._exchange is None and not self._reader.in_head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = self._front.trusted.peer(address[0] if address else "")
        # A connection that sends nothing gets no more time than a head that never ends.
        self.look_at = monotonic() + self._front.limits.head_timeout_s
        if not self._front.welcome(self):
            self._close_with(self._front.turn_away(), b"GET")

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        exchange = self._exchange
        if self._tunnel:
            if exchange is not None:
                exchange.tunnel_from_client(data)
            return
        was_in_head = self._reader.in_head
        self._reader.receive(data)
        if self._reader.in_head and not was_in_head and exchange is None:
            self.look_at = monotonic() + self._front.limits.head_timeout_s
        self._pump()
        if len(self._reader.rest) > self._front.limits.header_bytes_max:
            # It sends more before the current request is answered: limit the buffer.
            self._wait(ReadPause.NEXT_REQUEST)

    def _pump(self) -> None:
        """Process the events that were read, as far as possible now."""
        if self._pumping:
            return
        self._pumping = True
        events = self._reader.events
        while events and not self._lingering:
            event = events[0]
            exchange = self._exchange
            if isinstance(event, RequestHead):
                if exchange is not None:
                    self._wait(ReadPause.NEXT_REQUEST)
                    break
                if self._pause is not None:
                    # Requests that it had sent before the rejection wait for the end of the pause.
                    break
                if self.writing_paused:
                    # A client that sends requests and reads no responses would fill our memory.
                    self._wait(ReadPause.ANSWERS)
                    break
                events.popleft()
                self._begin(event)
            elif isinstance(event, Refusal):
                if exchange is not None and exchange.request_done:
                    # The request before it was complete, and gets its response first.
                    break
                events.popleft()
                self._refuse_bytes(event)
            else:
                events.popleft()
                # Without a request it was rejected, and its body is discarded.
                if exchange is not None:
                    if isinstance(event, bytes):
                        exchange.body(event)
                    elif event is END:
                        exchange.body_end()
        self._pumping = False

    def _begin(self, head: RequestHead) -> None:
        exchange = self._exchange = ProxiedRequest(self, self._front, head)
        self.look_at = 0.0
        # Handle the end first, so that a request without a body goes out in one write.
        events = self._reader.events
        if events and events[0] is END:
            events.popleft()
            exchange.body_end()
        refusal = self._front.admit(exchange)
        if refusal is not None:
            exchange.refuse(refusal)
        else:
            exchange.start()

    def _refuse_bytes(self, refusal: Refusal) -> None:
        self._front.count_refusal(refusal)
        exchange = self._exchange
        if exchange is not None:
            # In the middle of a body: the server must not take the part for the whole.
            exchange.keep_alive = False
            if exchange.answer_started:
                self.abort()
                return
            exchange.abandon()
        self._close_with(refusal, b"GET")

    def exchange_done(self, *, keep_alive: bool) -> None:
        if self._exchange is not None:
            self._front.remove(self._exchange)
        self._exchange = None
        self._answered_any = True
        if not keep_alive or self._tunnel or self._front.stopping:
            self._close_gently()
            return
        self._reader.receive_rest()
        limits = self._front.limits
        heard_in_s = 0.0 if self._pause is None else limits.refused_pause_s
        within_s = limits.head_timeout_s if self._reader.in_head else limits.idle_timeout_s
        self.look_at = monotonic() + heard_in_s + within_s
        self._resume(ReadPause.NEXT_REQUEST | ReadPause.SERVER)
        self._pump()
        if self.half_closed and self._exchange is None:
            self._close_gently()

    def exchange_dropped(self) -> None:
        """Forget a request without a complete response; the caller decides what follows."""
        if self._exchange is not None:
            self._front.remove(self._exchange)
        self._exchange = None

    # Sending to the client

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def send_eof(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def send_refusal(self, refusal: Refusal, method: bytes, *, keep_alive: bool) -> None:
        self.send(refusal_to_client(refusal, method, keep_alive=keep_alive, now_s=time()))
        if keep_alive and refusal.retry_after_s is not None:
            self._wait(ReadPause.REFUSED)
            self._pause = self._front.loop.call_later(
                self._front.limits.refused_pause_s, self._listen_again
            )

    def _listen_again(self) -> None:
        self._pause = None
        self._resume(ReadPause.REFUSED)
        self._pump()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def become_tunnel(self) -> None:
        self._tunnel = True
        rest = self._reader.take_rest()
        self._resume(ReadPause.NEXT_REQUEST)
        if rest and self._exchange is not None:
            self._exchange.tunnel_from_client(rest)

    def _close_with(self, refusal: Refusal, method: bytes) -> None:
        self.send_refusal(refusal, method, keep_alive=False)
        self._close_gently()

    def _close_gently(self) -> None:
        """Close for writing, and discard what still comes for a moment.

        Closing a connection with unread bytes resets it, and the client would lose the response.
        """
        transport = self._transport
        if self._lingering or transport is None:
            return
        # Watch a connection that is closing already, too: otherwise its last bytes could block for
        # ever.
        self._lingering = True
        self._end_pause()
        is_out = not transport.get_write_buffer_size()
        self.look_at = monotonic() + self._front.limits.linger_s if is_out else 0.0
        self._note_unsent(monotonic())
        if transport.is_closing():
            return
        if self.half_closed or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            # It was reset, and the event loop has not reported it yet.
            transport.abort()
            return
        self._resume(~ReadPause.NONE)

    def close_if_idle(self) -> None:
        if self.idle and not self._lingering:
            self._close_gently()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Backpressure

    def hold_for_server(self) -> None:
        self._wait(ReadPause.SERVER)

    def go_on_for_server(self) -> None:
        self._resume(ReadPause.SERVER)

    def _wait(self, reason: ReadPause) -> None:
        if (
            not self._read_pause
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._transport.pause_reading()
        self._read_pause |= reason

    def _resume(self, reason: ReadPause) -> None:
        if not self._read_pause:
            return
        self._read_pause &= ~reason
        if (
            not self._read_pause
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._transport.resume_reading()

    def takes_nothing(self, now: float) -> bool:
        """Return whether the client has read nothing for too long; a slow reader has not."""
        if self._unsent() != self._unsent_bytes:
            self._note_unsent(now)
        return now > self._unsent_since + self._front.limits.send_stall_s

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _note_unsent(self, now: float) -> None:
        # New unsent bytes may happen to equal the number that has gone out.
        self._unsent_bytes = self._unsent()
        self._unsent_since = now

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._note_unsent(monotonic())
        if self._exchange is not None:
            self._exchange.client_is_full()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._exchange is not None:
            self._exchange.client_has_room()
        else:
            self._resume(ReadPause.ANSWERS)
            self._pump()

    # The end, and timeouts

    def eof_received(self) -> bool:
        exchange = self._exchange
        self.half_closed = True
        if self._tunnel and exchange is not None:
            exchange.tunnel_eof_from_client()
            return True
        # A client that closes before a response has begun does not want it: most clients that give
        # up show it only in this way. Later it may just have closed the side it no longer needs.
        return exchange is not None and exchange.request_done and exchange.answer_started

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lingering = True
        self._end_pause()
        self._front.goodbye(self)
        exchange = self._exchange
        if exchange is not None:
            exchange.client_lost()

    def expired(self, now: float) -> None:
        """Act on the timeout of the current phase; called by the sweep."""
        exchange = self._exchange
        if exchange is not None:
            exchange.check_time(now)
        elif self._lingering:
            self._see_out(now)
        elif self._reader.in_head:
            refusal = Refusal(408, "the head came too slowly")
            self._front.count_refusal(refusal)
            self._close_with(refusal, b"GET")
        else:
            self._close_gently()

    def _see_out(self, now: float) -> None:
        """Wait until the last response is read, then linger; abort a client that stalls."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            if self.takes_nothing(now):
                self.abort()
        elif not self.look_at:
            self.look_at = now + self._front.limits.linger_s
        else:
            self.abort()


# Requests that wait for a server, first come first served.
#
# Most requests take the first server with room. A request of a session waits for its own server,
# because moving the session would lose it. There is one line for all servers, and one for each
# server that sessions wait for. A server with room takes the first request of both lines, so a
# session that waits for a full server does not delay other requests.


class WaitingRequest(Protocol):
    """A request that can wait."""

    # Servers on which it has failed.
    tried: set[str]


Waiting = TypeVar("Waiting", bound=WaitingRequest)


class WaitQueue(Generic[Waiting]):
    """Waiting requests in their lines; the number is limited."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._numbers = count()
        # By the only server that will do; None means any.
        self._lines: dict[str | None, OrderedDict[Waiting, int]] = {}
        self._line_of: dict[Waiting, str | None] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    @property
    def full(self) -> bool:
        return len(self._line_of) >= self._waiting_max

    def put(self, waiter: Waiting, server: str | None) -> None:
        self._line_of[waiter] = server
        self._lines.setdefault(server, OrderedDict())[waiter] = next(self._numbers)

    def leave(self, waiter: Waiting) -> None:
        """Remove a request that has a server or has waited long enough."""
        if waiter in self._line_of:
            server = self._line_of.pop(waiter)
            line = self._lines[server]
            del line[waiter]
            if not line:
                del self._lines[server]

    def first_for(self, server: str, *, only_sessions: bool = False) -> Waiting | None:
        """Return, but do not remove, the next request for a server with room; else None."""
        own = next(iter(self._lines.get(server, {}).items()), None)
        if only_sessions:
            return None if own is None else own[0]
        anybody = next(
            (one for one in self._lines.get(None, {}).items() if server not in one[0].tried), None
        )
        candidates = [one for one in (own, anybody) if one is not None]
        return min(candidates, key=lambda one: one[1])[0] if candidates else None

    def waited_for(self) -> list[str]:
        """Return the servers that sessions wait for."""
        return [name for name in self._lines if name is not None]

    def line(self, server: str | None) -> list[Waiting]:
        return list(self._lines.get(server, ()))
