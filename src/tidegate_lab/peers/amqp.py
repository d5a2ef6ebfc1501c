"""A minimal AMQP 0-9-1 client that measures the broker instead of a client library.

A client library costs more processor time than the broker. This client does nearly nothing per
message. The frames of a publish are the same bytes around every payload. The deliveries of one
consumer with payloads of one size all have the same length. So both are handled as arrays of
records of fixed size.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = b"\xce"
METHOD_FRAME, HEADER_FRAME, BODY_FRAME = 1, 2, 3
CHANNEL = 1
CONSUMER_TAG = b"c"
FRAME_BYTES_MAX = 131_072
SOCKET_BUFFER_BYTES = 1 << 20

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_PUBLISH, BASIC_DELIVER = (60, 40), (60, 60)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
# Basic.Ack is a confirmation in one direction and an acknowledgement in the other: frame head,
# class, method, delivery tag, multiple, frame end.
_ACK = struct.Struct(">BHIHHQBB")
_ACK_PAYLOAD_BYTES = 13


class AmqpError(RuntimeError):
    """The broker sent a frame that this client does not expect."""


def _short_string(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long_string(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _table(entries: dict[str, str]) -> bytes:
    return _long_string(
        b"".join(
            _short_string(key.encode()) + b"S" + _long_string(value.encode())
            for key, value in entries.items()
        )
    )


def _frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(frame_type, channel, len(payload)) + payload + FRAME_END


def _method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    return _frame(METHOD_FRAME, channel, _METHOD.pack(*method) + arguments)


def publish_prefix(queue: str, payload_bytes: int, *, persistent: bool = True) -> bytes:
    """Return all bytes of a publish before the payload; `FRAME_END` follows the payload."""
    method = _method(
        CHANNEL,
        BASIC_PUBLISH,
        b"\x00\x00" + _short_string(b"") + _short_string(queue.encode()) + b"\x00",
    )
    # Property flag 12 is the delivery mode, and 2 is persistent.
    properties = (1 << 12, 2 if persistent else 1)
    header = _frame(HEADER_FRAME, CHANNEL, struct.pack(">HHQHB", 60, 0, payload_bytes, *properties))
    return method + header + _FRAME.pack(BODY_FRAME, CHANNEL, payload_bytes)


def acknowledge_up_to(delivery_tag: int) -> bytes:
    """Return the frame that acknowledges this delivery and all before it."""
    return _ACK.pack(
        METHOD_FRAME, CHANNEL, _ACK_PAYLOAD_BYTES, *BASIC_ACK, delivery_tag, 1, FRAME_END[0]
    )


class RawConnection:
    """A connection with one channel, on a blocking socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._received = b""
        self.socket.sendall(PROTOCOL_HEADER)
        self._expect(CONNECTION_START)
        self._send(
            0,
            CONNECTION_START_OK,
            _table({})
            + _short_string(b"PLAIN")
            + _long_string(b"\x00guest\x00guest")
            + _short_string(b"en_US"),
        )
        self._expect(CONNECTION_TUNE)
        # Heartbeat 0 turns heartbeats off: this client does not expect their frames.
        self._send(0, CONNECTION_TUNE_OK, struct.pack(">HIH", 16, FRAME_BYTES_MAX, 0))
        self._send(0, CONNECTION_OPEN, _short_string(b"/") + b"\x00\x00")
        self._expect(CONNECTION_OPEN_OK)
        self._send(CHANNEL, CHANNEL_OPEN, b"\x00")
        self._expect(CHANNEL_OPEN_OK)

    def declare_queue(self, queue: str, arguments: dict[str, str]) -> None:
        """Create a durable queue."""
        self._send(
            CHANNEL,
            QUEUE_DECLARE,
            b"\x00\x00" + _short_string(queue.encode()) + b"\x02" + _table(arguments),
        )
        self._expect(QUEUE_DECLARE_OK)

    def delete_queue(self, queue: str) -> None:
        """Delete the queue; the answer proves that the broker has processed all earlier acks."""
        self._send(CHANNEL, QUEUE_DELETE, b"\x00\x00" + _short_string(queue.encode()) + b"\x00")
        self._expect(QUEUE_DELETE_OK)

    def select_confirms(self) -> None:
        """Turn on confirmations for all further publishes."""
        self._send(CHANNEL, CONFIRM_SELECT, b"\x00")
        self._expect(CONFIRM_SELECT_OK)

    def set_prefetch(self, prefetch: int) -> None:
        """Limit the number of unacknowledged messages of this channel."""
        self._send(CHANNEL, BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0))
        self._expect(BASIC_QOS_OK)

    def consume(self, queue: str) -> None:
        """Subscribe to a queue; read the deliveries with `receive`."""
        self._send(
            CHANNEL,
            BASIC_CONSUME,
            b"\x00\x00"
            + _short_string(queue.encode())
            + _short_string(CONSUMER_TAG)
            + b"\x00"
            + _table({}),
        )
        self._expect(BASIC_CONSUME_OK)

    def receive(self) -> bytes:
        """Return the next received bytes, which may end within a frame."""
        chunk = self.socket.recv(SOCKET_BUFFER_BYTES)
        if not chunk:
            raise AmqpError("the broker closed the connection")
        return chunk

    def close(self) -> None:
        """Close the socket without the AMQP closing handshake."""
        self.socket.close()

    def _send(self, channel: int, method: tuple[int, int], arguments: bytes) -> None:
        self.socket.sendall(_method(channel, method, arguments))

    def _expect(self, method: tuple[int, int]) -> None:
        """Read frames until this method arrives; raise `AmqpError` if the broker closes."""
        while True:
            while len(self._received) < _FRAME.size:
                self._received += self.receive()
            frame_type, _, payload_bytes = _FRAME.unpack_from(self._received)
            frame_bytes = _FRAME.size + payload_bytes + 1
            while len(self._received) < frame_bytes:
                self._received += self.receive()
            payload = self._received[_FRAME.size : frame_bytes - 1]
            self._received = self._received[frame_bytes:]
            if frame_type != METHOD_FRAME:
                continue
            came = _METHOD.unpack_from(payload)
            if came == method:
                return
            if came in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                raise AmqpError(f"the broker refused: {payload[4:].decode(errors='replace')}")


class ConfirmReader:
    """Decodes confirmations into delivery tags, each once, in any order of the broker."""

    def __init__(self) -> None:
        self.confirmed = 0
        self._floor = 0
        self._early: set[int] = set()
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[int]:
        """Yield the delivery tags that these bytes confirm."""
        data = self._rest + chunk
        whole = len(data) - len(data) % _ACK.size
        self._rest = data[whole:]
        for _, _, _, class_id, method_id, tag, multiple, _ in _ACK.iter_unpack(data[:whole]):
            if (class_id, method_id) != BASIC_ACK:
                raise AmqpError(f"expected a confirm, got method {class_id}.{method_id}")
            yield from self._up_to(tag) if multiple else self._single(tag)

    def _up_to(self, tag: int) -> Iterator[int]:
        for candidate in range(self._floor + 1, tag + 1):
            if candidate in self._early:
                self._early.discard(candidate)
            else:
                self.confirmed += 1
                yield candidate
        self._floor = max(self._floor, tag)
        self._absorb()

    def _single(self, tag: int) -> Iterator[int]:
        self.confirmed += 1
        yield tag
        if tag == self._floor + 1:
            self._floor = tag
            self._absorb()
        else:
            self._early.add(tag)

    def _absorb(self) -> None:
        while self._early and self._floor + 1 in self._early:
            self._floor += 1
            self._early.discard(self._floor)


class DeliveryReader:
    """Decodes deliveries of one consumer into payloads, as records of fixed size."""

    def __init__(self, queue: str, payload_bytes: int) -> None:
        deliver_bytes = 4 + 1 + len(CONSUMER_TAG) + 8 + 1 + 1 + 1 + len(queue.encode())
        header_bytes = 2 + 2 + 8 + 2 + 1
        before_payload = deliver_bytes + 1 + _FRAME.size + header_bytes + 1 + _FRAME.size
        self._delivery = struct.Struct(f">BHIHH{before_payload - 4}x{payload_bytes}sB")
        self._head = (METHOD_FRAME, CHANNEL, deliver_bytes, *BASIC_DELIVER)
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the payloads that are complete with these bytes."""
        data = self._rest + chunk if self._rest else chunk
        whole = len(data) - len(data) % self._delivery.size
        self._rest = data[whole:]
        head = self._head
        for *came, payload, frame_end in self._delivery.iter_unpack(memoryview(data)[:whole]):
            if tuple(came) != head or frame_end != FRAME_END[0]:
                raise AmqpError(f"expected a delivery, got a frame that begins {came}")
            yield payload
