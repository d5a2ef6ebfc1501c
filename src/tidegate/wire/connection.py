"""One side of a connection, without the socket: bytes in, packets out.

Everything that changes the state of a connection is the table below. A node starts OPENED and
takes only what may come before login; a login, or trust in the peer, makes it AUTHENTICATED;
answering Register or Identify makes it IDENTIFIED and raises the limit on frames.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from tidegate.core.errors import (
    Malformed,
    NotAuthenticated,
    RequiredParameterMissing,
    TidegateError,
    UnexpectedPacket,
    from_code,
)
from tidegate.wire.frames import Frame, FrameReader, frame_pieces
from tidegate.wire.packet import Answer, Error, Packet, Request
from tidegate.wire.packets.clients import IdentifyClientResponse, RegisterClientResponse
from tidegate.wire.packets.login import AuthenticateResponse, ProveResponse
from tidegate.wire.packets.registry import ANSWERS, PUSHES, REQUESTS

FRAME_BEFORE_LOGIN_BYTES = 8 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# Room beside the largest message, or the metadata of a batch.
METADATA_BYTES_MAX = 1024 * 1024
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + METADATA_BYTES_MAX


class State(enum.Enum):
    """Where a connection stands."""

    OPENED = "opened"
    CHALLENGED = "challenged"
    AUTHENTICATED = "authenticated"
    IDENTIFIED = "identified"
    CLOSED = "closed"


class Happening(enum.Enum):
    """What moves it."""

    CHALLENGE = "challenge"
    PROOF = "proof"
    TRUST = "trust in the peer"
    IDENTIFICATION = "identification"
    MALFORMED_BYTES = "malformed bytes"
    END = "end"


TRANSITIONS: dict[State, dict[Happening, State]] = {
    State.OPENED: {
        Happening.CHALLENGE: State.CHALLENGED,
        Happening.TRUST: State.AUTHENTICATED,
        Happening.MALFORMED_BYTES: State.CLOSED,
        Happening.END: State.CLOSED,
    },
    State.CHALLENGED: {
        Happening.PROOF: State.AUTHENTICATED,
        Happening.MALFORMED_BYTES: State.CLOSED,
        Happening.END: State.CLOSED,
    },
    State.AUTHENTICATED: {
        Happening.IDENTIFICATION: State.IDENTIFIED,
        Happening.MALFORMED_BYTES: State.CLOSED,
        Happening.END: State.CLOSED,
    },
    State.IDENTIFIED: {
        Happening.IDENTIFICATION: State.IDENTIFIED,
        Happening.MALFORMED_BYTES: State.CLOSED,
        Happening.END: State.CLOSED,
    },
    State.CLOSED: {Happening.MALFORMED_BYTES: State.CLOSED, Happening.END: State.CLOSED},
}

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[int, msgspec.msgpack.Decoder[Packet]] = {
    method: msgspec.msgpack.Decoder(packet)
    for table in (REQUESTS, ANSWERS, PUSHES)
    for method, packet in table.items()
}


class Received:
    """A packet that came in, with its body."""

    __slots__ = ("body", "frame", "packet", "packet_id")

    def __init__(self, packet: Packet, frame: Frame) -> None:
        self.packet = packet
        self.packet_id = frame.packet_id
        self.body = frame.body
        self.frame = frame


class Refused:
    """A frame that was understood as a frame but not as a packet; the connection goes on."""

    __slots__ = ("error", "packet_id")

    def __init__(self, error: TidegateError, packet_id: int) -> None:
        self.error = error
        self.packet_id = packet_id


class Connection:
    """The protocol of one connection; `server` says which side it is."""

    __slots__ = (
        "_frame_bytes_max",
        "_methods",
        "_reader",
        "login_required",
        "server",
        "state",
    )

    def __init__(
        self,
        *,
        server: bool,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        frame_before_login_bytes: int = FRAME_BEFORE_LOGIN_BYTES,
    ) -> None:
        self.server = server
        # A node says so before the first bytes; whether it trusts us, a client cannot know.
        self.login_required = False
        self.state = State.OPENED
        self._frame_bytes_max = frame_bytes_max
        # A client trusts the node it has chosen; a node trusts nobody before login.
        self._reader = FrameReader(frame_before_login_bytes if server else frame_bytes_max)
        self._methods: dict[int, type[Request]] | dict[int, type[Packet]] = (
            REQUESTS if server else {**ANSWERS, **PUSHES}
        )

    def _move(self, happening: Happening) -> None:
        try:
            self.state = TRANSITIONS[self.state][happening]
        except KeyError:
            raise UnexpectedPacket(
                f"{happening.value} on a connection that is {self.state.value}"
            ) from None
        if self.state is State.IDENTIFIED:
            self._reader.frame_bytes_max = self._frame_bytes_max

    def close(self) -> None:
        self._move(Happening.END)

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is kept."""
        return self._reader.held_bytes

    def receive(self, data: bytes) -> Iterator[Received | Refused]:
        """What the bytes mean; Malformed and TooLarge end the connection."""
        if self.state is State.CLOSED:
            return
        try:
            frames = self._reader.receive(data)
        except TidegateError:
            self._move(Happening.MALFORMED_BYTES)
            raise
        for frame in frames:
            yield self._understand(frame)

    def _understand(self, frame: Frame) -> Received | Refused:
        kind = self._methods.get(frame.method)
        if kind is None:
            return Refused(
                UnexpectedPacket(
                    f"method 0x{frame.method:02x} is nothing a "
                    f"{'client sends' if self.server else 'node sends'}"
                ),
                frame.packet_id,
            )
        if self.server and self.state is not State.IDENTIFIED:
            assert issubclass(kind, Request)
            if (refusal := self._too_early(kind)) is not None:
                return Refused(refusal, frame.packet_id)
        try:
            packet = _decoders[frame.method].decode(frame.meta)
        except msgspec.ValidationError as bad:
            return Refused(_explain(kind, bad), frame.packet_id)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as bad:
            self._move(Happening.MALFORMED_BYTES)
            raise Malformed(f"metadata of {kind.__name__} cannot be read: {bad}") from None
        if self.state is not State.IDENTIFIED:
            self._progress(packet)
        return Received(packet, frame)

    def _progress(self, packet: Packet) -> None:
        """What a packet that came in does to a connection that is not identified yet."""
        if self.server:
            if self.state is State.OPENED and not getattr(packet, "before_login", True):
                self._move(Happening.TRUST)
            return
        try:
            self._answered(packet)
        except UnexpectedPacket as bad:
            self._move(Happening.MALFORMED_BYTES)
            raise Malformed(f"an answer out of turn: {bad}") from None

    def _too_early(self, kind: type[Request]) -> TidegateError | None:
        """Why a packet cannot come yet; None: it can."""
        if not kind.before_identification:
            return UnexpectedPacket(
                f"{kind.__name__} before identification: register or identify first"
            )
        if kind.before_login or self.state is State.AUTHENTICATED:
            return None
        if self.login_required or self.state is not State.OPENED:
            return NotAuthenticated(
                "this node wants a login: name a user in the URL, as in tidegate://user@host, and "
                "give its password"
            )
        return None

    def _answered(self, packet: Packet) -> None:
        """What an answer, given or received, does to the connection."""
        if isinstance(packet, AuthenticateResponse):
            self._move(Happening.CHALLENGE)
        elif isinstance(packet, ProveResponse):
            self._move(Happening.PROOF)
        elif isinstance(packet, RegisterClientResponse | IdentifyClientResponse):
            if self.state is State.OPENED and not self.login_required:
                self._move(Happening.TRUST)
            self._move(Happening.IDENTIFICATION)

    def send(
        self, packet: Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> list[memoryview | bytes]:
        """The packet as pieces of bytes to write."""
        if self.server and self.state is not State.IDENTIFIED:
            self._answered(packet)
        return frame_pieces(packet.method, packet_id, _encode(packet), bodies)

    def send_error(self, error: TidegateError, packet_id: int) -> list[memoryview | bytes]:
        return self.send(Error(code=error.code, text=str(error)), packet_id)


def relayed(frame: Frame) -> list[memoryview | bytes]:
    """A frame as it came, for passing on to another node."""
    body: list[memoryview | bytes] | None = [memoryview(frame.body)] if frame.body else None
    return frame_pieces(frame.method, frame.packet_id, bytes(frame.meta), body)


def _explain(kind: type[Packet], bad: msgspec.ValidationError) -> TidegateError:
    text = f"{kind.__name__}: {bad}"
    # msgspec says "Expected `array` of at least length n" when trailing fields are missing.
    if "at least length" in str(bad) or "missing required" in str(bad):
        return RequiredParameterMissing(text)
    return UnexpectedPacket(text)


def error_of(answer: Answer) -> TidegateError | None:
    """The exception behind an answer, if it is an error."""
    return from_code(answer.code, answer.text) if isinstance(answer, Error) else None
