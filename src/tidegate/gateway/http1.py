"""Checks of a request's head beyond the syntax of HTTP.

The parser (llhttp, through httptools) rejects bare LF, folded fields, NUL and control characters,
whitespace before a colon, malformed or repeated lengths, and a length next to a coding. This module
rejects heads that pass the parser but that two servers could read differently. Accepted requests
are written again from their parts (forwarding.py); no byte of a client's framing reaches a server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidegate.core.probe_mark import FIELD
from tidegate.gateway.refusal import Refusal

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
_PROBE = FIELD.lower().encode()
_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"cookie", b"loadbalanced", b"expect", _PROBE}
# CGI-like applications cannot tell `Content_Length` from the real field.
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
    # The mark of the leader's probe (core.probe_mark); not forwarded.
    probe_mark: bytes = b""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    @property
    def idempotent(self) -> bool:
        return self.method in IDEMPOTENT


def judged(method: bytes, target: bytes, version: str, fields: list[Field]) -> RequestHead:
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
