"""One side of a protocol connection, without the socket: bytes in, packets out.

Theory of operation. A `ProtocolConnection` turns received bytes into packets and packets into
bytes. It does no I/O, so the same class serves nodes, clients, relays and tests. Everything that
changes its state is in the table `TRANSITIONS` below. The states on the node's side are:

- opened: the client has sent nothing yet, or only a ping. Only packets that are allowed before
  login are accepted.
- challenged: the node has sent a SCRAM challenge and expects the proof.
- authenticated: the login succeeded, or the node requires none and the client has begun to
  identify.
- identified: the node has answered Register or Identify. All packets are accepted, and the limit on
  frames rises from 8 KiB to the configured one.
- closed: by either side, or after malformed bytes.

A client follows the same states by the answers that it receives. A client does not limit frames
before login, since it trusts the node that it chose.

Errors: a frame that is well-formed but has an unknown method, comes too early or lacks parameters
is yielded as `RejectedPacket`, and the connection stays open. A frame that is too large, malformed,
or contains undecodable metadata closes the connection.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from tidegate.core.errors import (
    Malformed,
    NotAuthenticated,
    RequiredParameterMissing,
    TidegateError,
    TooLarge,
    UnexpectedPacket,
    from_code,
)
from tidegate.protocol import catalogue, cluster, messages, packet
from tidegate.protocol.catalogue import (
    AuthenticateResponse,
    IdentifyClientResponse,
    ProveResponse,
    RegisterClientResponse,
)
from tidegate.protocol.packet import Answer, Error, Packet, Push, Request

# All packets by method id: requests for nodes, answers and pushes for clients.


_SUBJECTS = (packet, catalogue, messages, cluster)

_Kind = TypeVar("_Kind", bound=Packet)


def _by_method(kind: type[_Kind]) -> dict[int, type[_Kind]]:
    things = [thing for subject in _SUBJECTS for thing in vars(subject).values()]
    packets = [thing for thing in things if isinstance(thing, type) and issubclass(thing, kind)]
    # A packet without an id is only a base class.
    return {one.method: one for one in packets if one.method}


REQUESTS = _by_method(Request)
ANSWERS = _by_method(Answer)
PUSHES = _by_method(Push)

FRAME_BEFORE_LOGIN_BYTES = 8 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# Room for metadata beside the largest message, or for the metadata of a batch.
METADATA_BYTES_MAX = 1024 * 1024
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + METADATA_BYTES_MAX


class ProtocolState(enum.Enum):
    """The state of a protocol connection."""

    OPENED = "opened"
    CHALLENGED = "challenged"
    AUTHENTICATED = "authenticated"
    IDENTIFIED = "identified"
    CLOSED = "closed"


class ProtocolEvent(enum.Enum):
    """An event that changes the state of a protocol connection."""

    CHALLENGE = "challenge"
    PROOF = "proof"
    TRUST = "trust in the peer"
    IDENTIFICATION = "identification"
    MALFORMED_BYTES = "malformed bytes"
    END = "end"


TRANSITIONS: dict[ProtocolState, dict[ProtocolEvent, ProtocolState]] = {
    ProtocolState.OPENED: {
        ProtocolEvent.CHALLENGE: ProtocolState.CHALLENGED,
        ProtocolEvent.TRUST: ProtocolState.AUTHENTICATED,
        ProtocolEvent.MALFORMED_BYTES: ProtocolState.CLOSED,
        ProtocolEvent.END: ProtocolState.CLOSED,
    },
    ProtocolState.CHALLENGED: {
        ProtocolEvent.PROOF: ProtocolState.AUTHENTICATED,
        ProtocolEvent.MALFORMED_BYTES: ProtocolState.CLOSED,
        ProtocolEvent.END: ProtocolState.CLOSED,
    },
    ProtocolState.AUTHENTICATED: {
        ProtocolEvent.IDENTIFICATION: ProtocolState.IDENTIFIED,
        ProtocolEvent.MALFORMED_BYTES: ProtocolState.CLOSED,
        ProtocolEvent.END: ProtocolState.CLOSED,
    },
    ProtocolState.IDENTIFIED: {
        ProtocolEvent.IDENTIFICATION: ProtocolState.IDENTIFIED,
        ProtocolEvent.MALFORMED_BYTES: ProtocolState.CLOSED,
        ProtocolEvent.END: ProtocolState.CLOSED,
    },
    ProtocolState.CLOSED: {
        ProtocolEvent.MALFORMED_BYTES: ProtocolState.CLOSED,
        ProtocolEvent.END: ProtocolState.CLOSED,
    },
}

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[int, msgspec.msgpack.Decoder[Packet]] = {
    method: msgspec.msgpack.Decoder(packet)
    for table in (REQUESTS, ANSWERS, PUSHES)
    for method, packet in table.items()
}


class ReceivedPacket:
    """A received packet with its body."""

    __slots__ = ("body", "frame", "packet", "packet_id")

    def __init__(self, packet: Packet, frame: Frame) -> None:
        self.packet = packet
        self.packet_id = frame.packet_id
        self.body = frame.body
        self.frame = frame


class RejectedPacket:
    """A frame with a bad packet; the connection stays open."""

    __slots__ = ("error", "packet_id")

    def __init__(self, error: TidegateError, packet_id: int) -> None:
        self.error = error
        self.packet_id = packet_id


class ProtocolConnection:
    """The protocol of one connection, on the side of a node (`server`) or of a client."""

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
        # A node sets this before the first bytes. A client cannot know whether the node requires a
        # login.
        self.login_required = False
        self.state = ProtocolState.OPENED
        self._frame_bytes_max = frame_bytes_max
        # A node limits unauthenticated peers to small frames; a client trusts the node that it
        # chose.
        self._reader = FrameReader(frame_before_login_bytes if server else frame_bytes_max)
        self._methods: dict[int, type[Request]] | dict[int, type[Packet]] = (
            REQUESTS if server else {**ANSWERS, **PUSHES}
        )

    def _move(self, happening: ProtocolEvent) -> None:
        try:
            self.state = TRANSITIONS[self.state][happening]
        except KeyError:
            raise UnexpectedPacket(
                f"{happening.value} on a connection that is {self.state.value}"
            ) from None
        if self.state is ProtocolState.IDENTIFIED:
            self._reader.frame_bytes_max = self._frame_bytes_max

    def close(self) -> None:
        self._move(ProtocolEvent.END)

    @property
    def held_bytes(self) -> int:
        """The bytes of an incomplete frame that are kept."""
        return self._reader.held_bytes

    def receive(self, data: bytes) -> Iterator[ReceivedPacket | RejectedPacket]:
        """Yield the packets that these bytes complete.

        Raise `Malformed` or `TooLarge` for bytes that end the connection. A closed connection
        ignores all bytes.
        """
        if self.state is ProtocolState.CLOSED:
            return
        try:
            frames = self._reader.receive(data)
        except TidegateError:
            self._move(ProtocolEvent.MALFORMED_BYTES)
            raise
        for frame in frames:
            yield self._understand(frame)

    def _understand(self, frame: Frame) -> ReceivedPacket | RejectedPacket:
        kind = self._methods.get(frame.method)
        if kind is None:
            return RejectedPacket(
                UnexpectedPacket(
                    f"method 0x{frame.method:02x} is nothing a "
                    f"{'client sends' if self.server else 'node sends'}"
                ),
                frame.packet_id,
            )
        if self.server and self.state is not ProtocolState.IDENTIFIED:
            assert issubclass(kind, Request)
            if (refusal := self._too_early(kind)) is not None:
                return RejectedPacket(refusal, frame.packet_id)
        try:
            packet = _decoders[frame.method].decode(frame.meta)
        except msgspec.ValidationError as bad:
            return RejectedPacket(_explain(kind, bad), frame.packet_id)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as bad:
            self._move(ProtocolEvent.MALFORMED_BYTES)
            raise Malformed(f"metadata of {kind.__name__} cannot be read: {bad}") from None
        if self.state is not ProtocolState.IDENTIFIED:
            self._progress(packet)
        return ReceivedPacket(packet, frame)

    def _progress(self, packet: Packet) -> None:
        """Apply the effect of a received packet on the state before identification."""
        if self.server:
            if self.state is ProtocolState.OPENED and not getattr(packet, "before_login", True):
                self._move(ProtocolEvent.TRUST)
            return
        try:
            self._answered(packet)
        except UnexpectedPacket as bad:
            self._move(ProtocolEvent.MALFORMED_BYTES)
            raise Malformed(f"an answer out of turn: {bad}") from None

    def _too_early(self, kind: type[Request]) -> TidegateError | None:
        """Return the reason why a packet is not allowed yet; `None` if it is allowed."""
        if not kind.before_identification:
            return UnexpectedPacket(
                f"{kind.__name__} before identification: register or identify first"
            )
        if kind.before_login or self.state is ProtocolState.AUTHENTICATED:
            return None
        if self.login_required or self.state is not ProtocolState.OPENED:
            return NotAuthenticated(
                "this node wants a login: name a user in the URL, as in tidegate://user@host, and "
                "give its password"
            )
        return None

    def _answered(self, packet: Packet) -> None:
        """Apply the effect of an answer, sent or received, on the state."""
        if isinstance(packet, AuthenticateResponse):
            self._move(ProtocolEvent.CHALLENGE)
        elif isinstance(packet, ProveResponse):
            self._move(ProtocolEvent.PROOF)
        elif isinstance(packet, RegisterClientResponse | IdentifyClientResponse):
            if self.state is ProtocolState.OPENED and not self.login_required:
                self._move(ProtocolEvent.TRUST)
            self._move(ProtocolEvent.IDENTIFICATION)

    def send(
        self, packet: Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> list[memoryview | bytes]:
        """Return a packet as pieces of bytes to write."""
        if self.server and self.state is not ProtocolState.IDENTIFIED:
            self._answered(packet)
        return frame_pieces(packet.method, packet_id, _encode(packet), bodies)

    def send_error(self, error: TidegateError, packet_id: int) -> list[memoryview | bytes]:
        return self.send(Error(code=error.code, text=str(error)), packet_id)


def relayed(frame: Frame) -> list[memoryview | bytes]:
    """Return a received frame as pieces of bytes, to relay it to another node."""
    body: list[memoryview | bytes] | None = [memoryview(frame.body)] if frame.body else None
    return frame_pieces(frame.method, frame.packet_id, bytes(frame.meta), body)


def _explain(kind: type[Packet], bad: msgspec.ValidationError) -> TidegateError:
    text = f"{kind.__name__}: {bad}"
    # msgspec reports "Expected `array` of at least length n" when fields at the end are missing.
    if "at least length" in str(bad) or "missing required" in str(bad):
        return RequiredParameterMissing(text)
    return UnexpectedPacket(text)


def error_of(answer: Answer) -> TidegateError | None:
    """Return the exception that an answer reports; `None` if it reports none."""
    return from_code(answer.code, answer.text) if isinstance(answer, Error) else None


# Frames: the layout of packets in a stream of bytes.
#
#     length     u32   of the whole frame, including these four bytes (as in Telesto)
#     method     u16   the kind of packet
#     packet_id  u32   chosen by the sender of a request and repeated in the answer
#     meta_bytes u32   the length of the metadata
#     metadata         MessagePack, one array per packet
#     body             the payloads of the messages, unchanged, one after the other
#
# All integers are big-endian. The length is checked against the limit before a frame is stored.


HEADER = struct.Struct("!IHII")
HEADER_BYTES = HEADER.size
_LENGTH = struct.Struct("!I")

Bytes = bytes | bytearray | memoryview


class Frame:
    """One frame, separated from the stream and not yet decoded."""

    __slots__ = ("body", "meta", "method", "packet_id")

    def __init__(self, method: int, packet_id: int, meta: Bytes, body: Bytes) -> None:
        self.method = method
        self.packet_id = packet_id
        self.meta = meta
        self.body = body


def frame_pieces(
    method: int, packet_id: int, meta: bytes, bodies: list[memoryview | bytes] | None = None
) -> list[memoryview | bytes]:
    """Return a frame as pieces for `writelines`, so that payloads are not copied."""
    body_bytes = sum(map(len, bodies)) if bodies else 0
    head = HEADER.pack(HEADER_BYTES + len(meta) + body_bytes, method, packet_id, len(meta))
    if not bodies:
        return [head + meta]
    return [head + meta, *bodies]


class FrameReader:
    """Separates frames from a stream; holds at most one frame of the allowed size and a chunk."""

    __slots__ = ("_chunks", "_held_bytes", "_wanted_bytes", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunks: deque[bytes | memoryview] = deque()
        self._held_bytes = 0
        self._wanted_bytes = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def receive(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes."""
        if self._held_bytes:
            self._chunks.append(chunk)
            self._held_bytes += len(chunk)
            if self._held_bytes < self._wanted_bytes:
                return []
            chunk = b"".join(self._chunks)
            self._chunks.clear()
            self._held_bytes = 0
        return self._cut(chunk)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        view = memoryview(data)
        position, end = 0, len(data)
        self._wanted_bytes = HEADER_BYTES
        while end - position >= HEADER_BYTES:
            length, method, packet_id, meta_bytes = HEADER.unpack_from(data, position)
            if length > self.frame_bytes_max:
                raise TooLarge(
                    f"a frame of {length} bytes exceeds the limit of {self.frame_bytes_max}"
                )
            if length < HEADER_BYTES or meta_bytes > length - HEADER_BYTES:
                raise Malformed(f"a frame that claims {length} bytes with {meta_bytes} of metadata")
            if end - position < length:
                self._wanted_bytes = length
                break
            body_at = position + HEADER_BYTES + meta_bytes
            frames.append(
                Frame(
                    method,
                    packet_id,
                    view[position + HEADER_BYTES : body_at],
                    view[body_at : position + length],
                )
            )
            position += length
        if position < end:
            # Copy the rest, so that half a frame does not keep the whole chunk in memory.
            self._chunks.append(bytes(view[position:]) if position else data)
            self._held_bytes = end - position
        return frames
