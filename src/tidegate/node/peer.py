"""The transport of a session: bytes to packets, with back-pressure in both directions.

After 500 packets of one connection the event loop handles other connections first. A connection
whose client does not read its answers is not read, and gets no deliveries.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, cast

from tidegate.core.errors import TidegateError
from tidegate.node.cycle import RequestCycle
from tidegate.wire.connection import FRAME_BYTES_MAX, Connection, Received, Refused, State
from tidegate.wire.packet import Answer, Error, Packet
from tidegate.wire.packets.reads import ReadMessage, ReadResponse

if TYPE_CHECKING:
    from tidegate.node.server import Node

# Packets of one connection that are handled before other connections get their turn.
PACKETS_PER_TURN = 500
# Unsent bytes above which a connection is not read and gets no deliveries.
UNSENT_BYTES_MAX = 4 * 1024 * 1024
# How long a client may take to read the reason before the connection is cut.
_GOODBYE_S = 1.0

_READS = (ReadMessage, ReadResponse)


class Peer(asyncio.Protocol, ABC):
    """One accepted connection; the base class of `Session`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.last_heard = 0.0
        self.connected_at = 0.0
        self.cycle = RequestCycle(
            node.phases, None if node.recording is None else node.recording.requests
        )
        # Since when the client has read none of its pending data; None: nothing is pending.
        self._stalled_at: float | None = None
        self._unsent_bytes = 0
        self._wire = Connection(
            server=True,
            # Larger than any limit on messages: the node can then refuse a large message with an
            # explanation instead of ending the connection.
            frame_bytes_max=FRAME_BYTES_MAX,
            frame_before_login_bytes=node.limits.frame_before_login_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._paused = False
        # Bytes that arrived while the rest of a turn waits for the event loop; they are handled
        # after it. Reading is paused meanwhile, but another part of the node may resume it. None:
        # no turn waits.
        self._behind: list[bytes] | None = None

    @abstractmethod
    def _handle(self, event: Received) -> None:
        """Handle one packet."""

    @property
    def state(self) -> State:
        return self._wire.state

    @property
    def identified(self) -> bool:
        return self._wire.state is State.IDENTIFIED

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self.node.clock.monotonic()
        if self._behind is not None:
            self._behind.append(data)
            return
        self._take_in(self._wire.receive(data))

    def _take_in(self, events: Iterator[Received | Refused]) -> None:
        """Handle packets; after `PACKETS_PER_TURN`, schedule the rest and return."""
        node = self.node
        cycle = self.cycle
        started = node.clock.monotonic()
        try:
            for count, event in enumerate(events, 1):
                node.packets_in += 1
                cycle.asked(started, node.clock.monotonic())
                if isinstance(event, Refused):
                    cycle.verb = None
                    self.fail(event.packet_id, event.error)
                    continue
                cycle.verb = type(event.packet)
                self._handle(event)
                cycle.handled(type(event.packet) in _READS)
                if count == PACKETS_PER_TURN:
                    self.pause_reading()
                    self._behind = []
                    asyncio.get_running_loop().call_soon(self._go_on, events)
                    return
                started = node.clock.monotonic()
        except TidegateError as error:
            # The stream cannot be decoded any further: answer with the reason and close it.
            self.fail(0, error)
            self.close()
        if node.budget.is_flooded:
            # Data stays in the socket until the store has caught up.
            self.pause_reading()
            node.sessions.resume_when_dry(self)

    def _go_on(self, events: Iterator[Received | Refused]) -> None:
        behind, self._behind = self._behind or [], None
        if self._transport is None or self._transport.is_closing():
            # A session that is being closed for an error must not have its remaining packets
            # handled.
            return
        self.resume_reading()
        self._take_in(chain(events, *map(self._wire.receive, behind)))

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            # The node did not read, so the client's silence proves nothing.
            self.last_heard = self.node.clock.monotonic()
            self._transport.resume_reading()

    # Sending

    def pause_writing(self) -> None:
        self._paused = True
        self._stalled_at = self.node.clock.monotonic()
        self._unsent_bytes = 1 << 62
        # A client that does not read its answers must not cause more of them.
        self.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._stalled_at = None
        self.resume_reading()

    def can_take(self) -> bool:
        return not self._paused

    def stalled_s(self, now: float) -> float | None:
        """Return how long the client has read nothing; None if nothing is pending."""
        if self._stalled_at is None or self._transport is None:
            return None
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent_bytes:
            # The client reads, even if slowly.
            self._unsent_bytes, self._stalled_at = unsent, now
        return now - self._stalled_at

    def send(
        self, packet: Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.node.packets_out += 1
        pieces = self._wire.send(packet, packet_id, bodies)
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def answer(
        self, packet: Answer, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        started = self.node.clock.monotonic()
        self.send(packet, packet_id, bodies)
        self.cycle.answered(started, self.node.clock.monotonic())

    def fail(self, packet_id: int, error: TidegateError) -> None:
        self.answer(Error(code=error.code, text=str(error)), packet_id)

    def pass_on(self, pieces: list[memoryview | bytes]) -> None:
        """Send an answer of another node unchanged."""
        if self._transport is not None and not self._transport.is_closing():
            self.node.packets_out += 1
            self._transport.writelines(pieces)

    # Closing

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def end(self, error: TidegateError, packet_id: int = 0) -> None:
        """Send the error, then close the connection, even if the client does not read it."""
        self.fail(packet_id, error)
        self.hang_up()

    def hang_up(self) -> None:
        self.close()
        # A client that does not read would keep the connection and its resources open.
        asyncio.get_running_loop().call_later(_GOODBYE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
