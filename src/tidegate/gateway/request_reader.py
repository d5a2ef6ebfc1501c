"""Parses a client's bytes into requests: call `receive(chunk)`, then take from `events`.

The events of a request are its head, parts of its body, and END. A `Refusal` is always the last
event. Several requests in one chunk give events in order, so one read limits the buffer.

After the head of a WebSocket request nothing is parsed: `take_rest()` returns the bytes after it,
and `receive_rest()` continues parsing if the server did not switch protocols.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import httptools

from tidegate.gateway.refusal import Refusal
from tidegate.gateway.request_head import Field, RequestHead, judged


class Mark(Enum):
    """Events without content."""

    END = "the message is complete"


END = Mark.END
RequestEvent = RequestHead | bytes | Mark | Refusal


class RequestReader:
    """The receiving half of a client connection, without I/O."""

    __slots__ = (
        "_body_bytes",
        "_body_bytes_max",
        "_fields",
        "_head_bytes",
        "_header_bytes_max",
        "_parser",
        "_refused",
        "_target",
        "_unseen_bytes",
        "_websocket",
        "events",
        "in_body",
        "in_head",
        "rest",
    )

    def __init__(self, header_bytes_max: int, body_bytes_max: int | None) -> None:
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[Field] = []
        # Bytes of the fields that the parser has reported; and all bytes since it last reported the
        # end of anything. A field that never ends, in the head or in trailers, reports no end.
        self._head_bytes = 0
        self._unseen_bytes = 0
        self._body_bytes = 0
        self._refused = False
        self._websocket = False
        self.events: deque[RequestEvent] = deque()
        # Whether the last byte belongs to an unfinished head, or to an unfinished body.
        self.in_head = False
        self.in_body = False
        # Bytes after the head of a WebSocket request; the caller must limit them.
        self.rest = bytearray()

    def receive(self, data: bytes) -> None:
        if self._refused:
            return
        if self._websocket:
            self.rest += data
            return
        self._unseen_bytes += len(data)
        left: bytes | memoryview = data
        while left:
            try:
                self._parser.feed_data(left)
                break
            except httptools.HttpParserUpgrade as switch:
                left = self._switched(memoryview(left)[switch.args[0] :])
            except httptools.HttpParserError as failure:
                self._refuse(_refusal(failure))
                return
        if self._unseen_bytes > 2 * self._header_bytes_max:
            self._refuse(Refusal(431, "fields that do not end"))

    def take_rest(self) -> bytes:
        rest = bytes(self.rest)
        self.rest.clear()
        return rest

    def receive_rest(self) -> None:
        """Continue parsing, because the server did not switch protocols."""
        self._websocket = False
        rest = self.take_rest()
        if rest:
            self.receive(rest)

    def _switched(self, rest: memoryview) -> memoryview:
        """Return the bytes that are still to be parsed."""
        if self._websocket:
            self.rest += rest
            return rest[:0]
        # Another upgrade, which we do not offer: the connection continues with HTTP.
        return rest

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self.in_head = self.in_body = False
        self.events.append(refusal)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.in_head = True
        self._head_bytes = 0
        self._fields = []
        self._target = b""

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        # As in _count, without the call: this runs for every field.
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._header_bytes_max:
            raise Refusal(431, f"the head is longer than {self._header_bytes_max} bytes")
        # After the body these are trailers, which are counted and dropped.
        if self.in_head:
            self._fields.append((name, name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        method = parser.get_method()
        head = judged(method, self._target, parser.get_http_version(), self._fields)
        if parser.should_upgrade() and head.has_body:
            # llhttp would take the body for data after the protocol switch.
            raise Refusal(400, "an upgrade with a body")
        most = self._body_bytes_max
        if most is not None and head.content_length is not None and head.content_length > most:
            raise Refusal(413, f"the body is longer than {most} bytes")
        self._websocket = head.websocket
        self._body_bytes = 0
        self._head_bytes = 0
        self._unseen_bytes = 0
        self.in_head = False
        self.in_body = True
        self.events.append(head)

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        self._unseen_bytes = 0
        most = self._body_bytes_max
        if most is not None and self._body_bytes > most:
            raise Refusal(413, f"the body is longer than {most} bytes")
        self.events.append(part)

    def on_message_complete(self) -> None:
        self._unseen_bytes = 0
        self.in_body = False
        self.events.append(END)

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self._header_bytes_max:
            raise Refusal(431, f"the head is longer than {self._header_bytes_max} bytes")


def _refusal(failure: httptools.HttpParserError) -> Refusal:
    if not isinstance(failure, httptools.HttpParserCallbackError):
        return Refusal(400, f"not HTTP: {failure}")
    cause = failure.__context__ or failure.__cause__
    if isinstance(cause, Refusal):
        return cause
    raise failure
