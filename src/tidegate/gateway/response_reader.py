"""Parses a server's bytes into responses: the counterpart of request_reader.py.

The reader must know the method of each request, because a response to HEAD has no body, in spite of
its fields. A response with neither length nor coding ends with the connection (`end_of_file`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import httptools

from tidegate.core.errors import Malformed
from tidegate.gateway.request_head import HOP_BY_HOP, Field
from tidegate.gateway.request_reader import END, Mark


class BadAnswer(Malformed):
    """The server sent no valid response; its connection is closed and the client gets a 502."""


@dataclass(slots=True)
class ResponseHead:
    """A response's status, and its fields for the client."""

    status: int
    reason: bytes
    fields: list[Field]
    content_length: int | None
    # Neither a length nor chunked: it ends when the server closes the connection.
    until_close: bool
    keep_alive: bool
    has_date: bool
    upgrade: bytes = b""

    @property
    def interim(self) -> bool:
        return self.status < 200 and self.status != 101


ResponseEvent = ResponseHead | bytes | Mark


class ResponseReader:
    """The receiving half of a server connection, without I/O."""

    __slots__ = (
        "_fields",
        "_head_bytes",
        "_header_bytes_max",
        "_method",
        "_parser",
        "_reason",
        "_unseen_bytes",
        "_until_close",
        "complete",
        "events",
        "rest",
    )

    def __init__(self, header_bytes_max: int) -> None:
        self._header_bytes_max = header_bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self._method = b""
        self._fields: list[Field] = []
        self._reason = b""
        # As in request_reader.py: bytes of reported fields, and all bytes since the last reported
        # end.
        self._head_bytes = 0
        self._unseen_bytes = 0
        self._until_close = False
        # No response is expected; any byte now is unrequested.
        self.complete = True
        self.events: deque[ResponseEvent] = deque()
        # Bytes after a 101 response.
        self.rest = b""

    def expect(self, method: bytes) -> None:
        """Expect the response to a request with this method."""
        self._method = method
        self.complete = False
        self._until_close = False

    def receive(self, data: bytes) -> None:
        if self.complete:
            raise BadAnswer("bytes that belong to no answer")
        self._unseen_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            self.rest = data[switch.args[0] :]
        except httptools.HttpParserCallbackError as failure:
            cause = failure.__context__
            if isinstance(cause, BadAnswer):
                raise cause from None
            raise
        except httptools.HttpParserError as failure:
            if not self.complete:
                raise BadAnswer(f"not HTTP: {failure}") from None
        if self._unseen_bytes > 2 * self._header_bytes_max:
            raise BadAnswer("fields that do not end")

    def end_of_file(self) -> bool:
        """Handle the end of the connection; return whether the response is complete."""
        if self._until_close and not self.complete:
            self.complete = True
            self.events.append(END)
            return True
        return self.complete

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise BadAnswer("a second answer to one request")
        self._fields = []
        self._reason = b""
        self._head_bytes = 0

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._header_bytes_max:
            raise BadAnswer(f"the head is longer than {self._header_bytes_max} bytes")
        # After the body these are trailers: counted, and dropped.
        self._fields.append((name, name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._unseen_bytes = 0
        head = _answer(self._parser, self._reason, self._fields)
        self.events.append(head)
        bodiless = self._method == b"HEAD" or head.status in (204, 304) or head.status < 200
        if bodiless:
            head.until_close = False
        elif head.until_close:
            head.keep_alive = False
        self._until_close = head.until_close
        if self._method == b"HEAD" and not head.interim:
            # The parser would wait for the body that the head only describes.
            self._finish()
            self._parser = httptools.HttpResponseParser(self)

    def on_body(self, part: bytes) -> None:
        if self.complete:
            raise BadAnswer("a body in an answer to HEAD")
        self._unseen_bytes = 0
        self.events.append(part)

    def on_message_complete(self) -> None:
        head = self.events[-1] if self.events else None
        if isinstance(head, ResponseHead) and head.interim:
            return
        if not self.complete:
            self._finish()

    def _finish(self) -> None:
        self._unseen_bytes = 0
        self.complete = True
        self.events.append(END)


def _answer(
    parser: httptools.HttpResponseParser, reason: bytes, fields: list[Field]
) -> ResponseHead:
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise BadAnswer(f"HTTP/{version}")
    kept: list[Field] = []
    head = ResponseHead(parser.get_status_code(), reason, kept, None, True, version == "1.1", False)
    nominated: set[bytes] = set()
    for one in fields:
        lower = one[1]
        if lower == b"content-length":
            # llhttp has checked that it is one number, and not next to a transfer coding.
            head.content_length = int(one[2])
            head.until_close = False
        elif lower == b"transfer-encoding":
            if one[2].lower() != b"chunked":
                raise BadAnswer("a transfer coding that is not chunked")
            head.until_close = False
        elif lower == b"connection":
            nominated.update(token.strip() for token in one[2].lower().split(b","))
        elif lower == b"upgrade":
            head.upgrade = one[2]
        elif lower not in HOP_BY_HOP:
            if lower == b"date":
                head.has_date = True
            kept.append(one)
    if b"close" in nominated:
        head.keep_alive = False
    elif b"keep-alive" in nominated:
        head.keep_alive = True
    if nominated - {b"close", b"keep-alive", b"upgrade"}:
        head.fields = [one for one in kept if one[1] not in nominated]
    return head
