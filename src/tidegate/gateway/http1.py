"""Checks of a request's head beyond the syntax of HTTP.

The parser (llhttp, through httptools) rejects bare LF, folded fields, NUL and control characters,
whitespace before a colon, malformed or repeated lengths, and a length next to a coding. This module
rejects heads that pass the parser but that two servers could read differently. Accepted requests
are written again from their parts (exchange.py); no byte of a client's framing reaches a server.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from http import HTTPStatus

import httptools

from tidegate.core.errors import CallerError, InvalidValue, Malformed
from tidegate.core.services import PROBE_HEADER

# Name as received, name in lower case, value.
Field = tuple[bytes, bytes, bytes]

# RFC 9110, 9.2.2: repeating the request has the same effect.
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
# CONNECT would make us an open proxy, TRACE returns what we add, and PRI begins HTTP/2.
_REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE", b"PRI"))

# Fields for one connection only (RFC 9110, 7.6.1).
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
_PROBE = PROBE_HEADER.lower().encode()
_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"cookie", b"loadbalanced", b"expect", _PROBE}
# CGI-like applications cannot tell `Content_Length:` from the real field.
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)
# Fields that must not be removed by naming them in Connection.
_NOT_NOMINATED = frozenset(
    (b"host", b"content-length", b"cookie", b"authorization", b"cache-control")
)


@dataclass(slots=True)
class RequestHead:
    """The head of a request that may be forwarded."""

    method: bytes
    # In origin form: a path with its query, or `*`.
    target: bytes
    # Minor version of HTTP/1.
    minor: int
    # None is possible with HTTP/1.0 only.
    host: bytes | None
    # End-to-end fields, without host and length.
    fields: list[Field]
    content_length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    websocket: bool = False
    # The client waits for 100 Continue before it sends the body; never in HTTP/1.0.
    expects_continue: bool = False
    cookies: list[bytes] = field(default_factory=list)
    # Names of the gateways that the request has passed.
    balanced_by: bytes = b""
    # The mark of the leader's probe (`DoorSettings.probe_mark`); not forwarded.
    probe_mark: bytes = b""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    @property
    def idempotent(self) -> bool:
        return self.method in IDEMPOTENT


def parse_head(method: bytes, target: bytes, version: str, fields: list[Field]) -> RequestHead:
    """Check and convert a parsed head; raise `Refusal` with the reason if it is not acceptable."""
    if version not in ("1.1", "1.0"):
        raise Refusal(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if method in _REFUSED_METHODS:
        raise Refusal(501, f"{method.decode()} is not passed on")
    head = RequestHead(method, target, int(version[2]), None, [], keep_alive=version == "1.1")
    kept = head.fields
    nominated: set[bytes] = set()
    upgrade = b""
    for one in fields:
        lower = one[1]
        if lower not in _SPECIAL:
            # Most fields need nothing, and this check is enough for them.
            if b"_" in lower and lower.replace(b"_", b"-") in _FRAMING:
                raise Refusal(400, "a length or coding in disguise")
            kept.append(one)
        elif lower == b"host":
            if head.host is not None:
                raise Refusal(400, "more than one Host")
            if _HOST.fullmatch(one[2]) is None:
                raise Refusal(400, "Host is no host name")
            head.host = one[2]
        elif lower == b"content-length":
            _length(head, one[2])
        elif lower == b"transfer-encoding":
            _coding(head, one[2])
        elif lower == b"connection":
            nominated.update(token.strip() for token in one[2].lower().split(b","))
        elif lower == b"upgrade":
            upgrade = one[2].strip().lower()
        elif lower == b"cookie":
            head.cookies.append(one[2])
        elif lower == b"loadbalanced":
            head.balanced_by += (b", " if head.balanced_by else b"") + one[2]
        elif lower == _PROBE:
            head.probe_mark = one[2]
        elif lower == b"expect":
            if one[2].lower() != b"100-continue":
                raise Refusal(417, "only 100-continue can be expected")
            head.expects_continue = head.minor == 1
            kept.append(one)
    if head.host is None and head.minor == 1:
        raise Refusal(400, "Host is missing")
    if head.content_length is not None and head.chunked:
        raise Refusal(400, "both Content-Length and Transfer-Encoding")
    if nominated:
        _obey_connection(head, nominated, upgrade)
    _origin_form(head)
    return head


def _length(head: RequestHead, value: bytes) -> None:
    # int() would also accept +4, 4_0 and blanks.
    if head.content_length is not None or not value.isdigit() or len(value) > 18:
        raise Refusal(400, "Content-Length is not one number")
    head.content_length = int(value)


def _coding(head: RequestHead, value: bytes) -> None:
    if head.minor == 0:
        raise Refusal(400, "Transfer-Encoding in HTTP/1.0")
    if head.chunked or value.lower() != b"chunked":
        raise Refusal(400, "the only transfer coding is chunked, once")
    head.chunked = True


def _obey_connection(head: RequestHead, nominated: set[bytes], upgrade: bytes) -> None:
    if b"close" in nominated:
        head.keep_alive = False
    elif b"keep-alive" in nominated:
        head.keep_alive = True
    if nominated & _NOT_NOMINATED:
        raise Refusal(400, "Connection names a field that is not for it to name")
    # Only WebSocket is supported: h2c would tunnel requests past these checks.
    if b"upgrade" in nominated and upgrade == b"websocket" and head.minor == 1:
        if head.has_body or head.method != b"GET":
            raise Refusal(400, "a WebSocket opens with a GET that has no body")
        head.websocket = True
    if nominated - {b"close", b"keep-alive", b"upgrade"}:
        head.fields = [one for one in head.fields if one[1] not in nominated]


def _origin_form(head: RequestHead) -> None:
    target = head.target
    if target.startswith(b"/"):
        if b"#" in target:
            raise Refusal(400, "a fragment is not for the wire")
        return
    if target == b"*" and head.method == b"OPTIONS":
        return
    absolute = _ABSOLUTE.fullmatch(target)
    # RFC 9112, 3.2.2: the host of the target wins over the field.
    if absolute is None or _HOST.fullmatch(absolute[1]) is None:
        raise Refusal(400, "the target is neither a path nor an http address")
    head.host = absolute[1]
    rest = absolute[2] or b"/"
    head.target = rest if rest.startswith(b"/") else b"/" + rest


# Statuses of the server class that a client has caused itself: a method or version that is not
# supported, and a request that has passed this gateway before.
CLIENT_FAULTS = frozenset((501, 505, 508))


class Refusal(CallerError):
    """The reason and status of a rejected request; the connection is closed after most of them.

    After bytes that are no valid request, the meaning of the following bytes is unknown.
    """

    def __init__(
        self, status: int, why: str, *, retry_after_s: int | None = None, close: bool = True
    ) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.retry_after_s = retry_after_s
        self.close = close

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.status).phrase


# Parses a client's bytes into requests: call `receive(chunk)`, then take from `events`.
#
# The events of a request are its head, parts of its body, and END. A `Refusal` is always the last
# event. Several requests in one chunk give events in order, so one read limits the buffer.
#
# After the head of a WebSocket request nothing is parsed: `take_rest()` returns the bytes after it,
# and `receive_rest()` continues parsing if the server did not switch protocols.


class EndMarker(Enum):
    """Events without content."""

    END = "the message is complete"


END = EndMarker.END
RequestEvent = RequestHead | bytes | EndMarker | Refusal


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
        head = parse_head(method, self._target, parser.get_http_version(), self._fields)
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


# Parses a server's bytes into responses: the counterpart of http1.py.
#
# The reader must know the method of each request, because a response to HEAD has no body, in spite
# of its fields. A response with neither length nor coding ends with the connection (`end_of_file`).


class BadResponse(Malformed):
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


ResponseEvent = ResponseHead | bytes | EndMarker


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
        # As in http1.py: bytes of reported fields, and all bytes since the last reported
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
            raise BadResponse("bytes that belong to no answer")
        self._unseen_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            self.rest = data[switch.args[0] :]
        except httptools.HttpParserCallbackError as failure:
            cause = failure.__context__
            if isinstance(cause, BadResponse):
                raise cause from None
            raise
        except httptools.HttpParserError as failure:
            if not self.complete:
                raise BadResponse(f"not HTTP: {failure}") from None
        if self._unseen_bytes > 2 * self._header_bytes_max:
            raise BadResponse("fields that do not end")

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
            raise BadResponse("a second answer to one request")
        self._fields = []
        self._reason = b""
        self._head_bytes = 0

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._header_bytes_max:
            raise BadResponse(f"the head is longer than {self._header_bytes_max} bytes")
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
            raise BadResponse("a body in an answer to HEAD")
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
        raise BadResponse(f"HTTP/{version}")
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
                raise BadResponse("a transfer coding that is not chunked")
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


# Sticky sessions: the signed cookie `StickyHost` keeps a session on its server.
#
#     StickyHost = host tag . seconds since 1970 in hex . signature
#
# The host tag is a keyed hash of the server's name, so clients learn no names or addresses. The
# signature covers tag and time. Gateways with the same secret accept each other's cookies, so a
# session survives the death of its gateway. A cookie with a wrong signature, or an old cookie, is
# ignored.


COOKIE = b"StickyHost"
_SECRET_BYTES_LEAST = 16


def _keyed(secret: bytes, purpose: bytes, message: bytes) -> bytes:
    digest = hmac.digest(secret, purpose + b"\0" + message, sha256)
    return urlsafe_b64encode(digest[:18])


class StickySessions:
    """Writes and reads the cookies; knows servers by name only."""

    def __init__(self, secret: bytes, *, max_age_s: int = 12 * 3600, secure: bool = False) -> None:
        if len(secret) < _SECRET_BYTES_LEAST:
            raise InvalidValue(
                f"the secret of sticky sessions has {len(secret)} bytes; give it at least "
                f"{_SECRET_BYTES_LEAST} random ones, the same to every gateway"
            )
        self._secret = secret
        self._max_age_s = max_age_s
        self._attributes = b"; Path=/; HttpOnly; SameSite=Lax" + (b"; Secure" if secure else b"")
        self._name_of: dict[bytes, str] = {}
        self._tag_of: dict[str, bytes] = {}

    def know(self, name: str) -> None:
        tag = _keyed(self._secret, b"host", name.encode())
        self._name_of[tag] = name
        self._tag_of[name] = tag

    def remove(self, name: str) -> None:
        tag = self._tag_of.pop(name, None)
        if tag is not None:
            del self._name_of[tag]

    def cookie(self, name: str, now_s: float) -> bytes:
        """Return the value of Set-Cookie for a session on this server."""
        body = self._tag_of[name] + b"." + b"%x" % int(now_s)
        return COOKIE + b"=" + body + b"." + self._signature(body) + self._attributes

    def server(self, cookies: Iterable[bytes], now_s: float) -> str | None:
        """Return the server named by the first valid cookie; None if there is none."""
        for value in _values(cookies):
            body, _, signature = value.rpartition(b".")
            tag, _, since = body.partition(b".")
            if not hmac.compare_digest(self._signature(body), signature):
                continue
            # It is signed by us, so it is hexadecimal.
            if not -60.0 <= now_s - int(since, 16) <= self._max_age_s:
                continue
            name = self._name_of.get(tag)
            if name is not None:
                return name
        return None

    def _signature(self, body: bytes) -> bytes:
        return _keyed(self._secret, b"cookie", body)


def _values(cookies: Iterable[bytes]) -> Iterable[bytes]:
    prefix = COOKIE + b"="
    for header in cookies:
        for pair in header.split(b";"):
            stripped = pair.strip(b" \t")
            if stripped.startswith(prefix):
                yield stripped[len(prefix) :]


def without_sticky(cookies: Iterable[bytes]) -> bytes:
    """Return the application's cookies as one field; empty if there are none."""
    prefix = COOKIE + b"="
    return b"; ".join(
        stripped
        for field in cookies
        for pair in field.split(b";")
        if (stripped := pair.strip(b" \t")) and not stripped.startswith(prefix)
    )
