"""A client's bytes in, requests out: `receive(chunk)`, then take from `events`.

A head, then parts of its body, then END; a Refusal is the last event there is. Requests that come
in one chunk are events one behind the other, so what waits here is bounded by one read.

After a WebSocket's head nothing is parsed: `take_rest()` has what came behind it, and
`receive_rest()` parses on if the server did not want to switch.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import httptools

from tidegate.gateway.refusal import Refusal
from tidegate.gateway.request_head import Field, RequestHead, judged


class Mark(Enum):
    """What has no content."""

    END = "the message is complete"


END = Mark.END
RequestEvent = RequestHead | bytes | Mark | Refusal


class RequestReader:
    """The receiving half of a client's connection, without the connection."""

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
        # Of the fields that the parser has shown; and of all that came since it last showed the end
        # of something, as a field that never ends, in the head or behind the chunks, does not.
        self._head_bytes = 0
        self._unseen_bytes = 0
        self._body_bytes = 0
        self._refused = False
        self._websocket = False
        self.events: deque[RequestEvent] = deque()
        # Whether the last byte that came belongs to an unfinished head, or body.
        self.in_head = False
        self.in_body = False
        # What waits behind a WebSocket's head: who reads on has to bound it.
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
        """The server goes on in HTTP, so the client has to."""
        self._websocket = False
        rest = self.take_rest()
        if rest:
            self.receive(rest)

    def _switched(self, rest: memoryview) -> memoryview:
        """What of it is still to be parsed."""
        if self._websocket:
            self.rest += rest
            return rest[:0]
        # Some other upgrade, which we do not offer: the connection goes on as it was.
        return rest

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self.in_head = self.in_body = False
        self.events.append(refusal)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.in_head = True
        self._head_bytes = 0
        self._fields = []
        self._target = b""

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        # As in _count, without the call: this is done for every field.
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._header_bytes_max:
            raise Refusal(431, f"the head is longer than {self._header_bytes_max} bytes")
        # Behind the body they are trailers, which nobody asked for: counted and dropped.
        if self.in_head:
            self._fields.append((name, name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        method = parser.get_method()
        head = judged(method, self._target, parser.get_http_version(), self._fields)
        if parser.should_upgrade() and head.has_body:
            # llhttp would take such a body for what comes after the switch.
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
