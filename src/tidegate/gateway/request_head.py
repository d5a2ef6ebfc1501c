"""What a request's head must be to be passed on, beyond being HTTP.

The parser (llhttp, through httptools) refuses bare LF, folded fields, NUL and control characters,
whitespace before a colon, odd or repeated lengths, and a length beside a transfer coding. What it
lets through and two servers could still read differently is refused here. Whatever passes is
written anew (forwarding.py); no byte of a client's framing reaches a server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidegate.core.probe_mark import FIELD
from tidegate.gateway.refusal import Refusal

# As it was spelt, in lower case, and its value.
Field = tuple[bytes, bytes, bytes]

# RFC 9110, 9.2.2: doing it twice is as good as once.
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
# CONNECT would make us an open proxy, TRACE hands back what we add; PRI is HTTP/2's first word.
_REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE", b"PRI"))

# About one connection only (RFC 9110, 7.6.1).
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
# Applications behind CGI's rules cannot tell `Content_Length` from the real one.
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)
# Fields that nobody may hide from us by a list of what is hop-by-hop.
_NOT_NOMINATED = frozenset(
    (b"host", b"content-length", b"cookie", b"authorization", b"cache-control")
)


@dataclass(slots=True)
class RequestHead:
    """A request that may be passed on."""

    method: bytes
    # In origin form: a path with its query, or `*`.
    target: bytes
    # Of HTTP/1.
    minor: int
    # None with HTTP/1.0 only.
    host: bytes | None
    # End to end, without host and length.
    fields: list[Field]
    content_length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    websocket: bool = False
    # It sends its body when it is told to (100 Continue), which HTTP/1.0 does not know.
    expects_continue: bool = False
    cookies: list[bytes] = field(default_factory=list)
    # By whom it was balanced before.
    balanced_by: bytes = b""
    # What it says to be taken for the leader's own (core.probe_mark); nobody else sees it.
    probe_mark: bytes = b""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    @property
    def idempotent(self) -> bool:
        return self.method in IDEMPOTENT


def judged(method: bytes, target: bytes, version: str, fields: list[Field]) -> RequestHead:
    """The head, or a Refusal that says what is wrong with it."""
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
            # Most are of no concern to us, and one look tells.
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
    # int() would also take +4, 4_0 and blanks.
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
    # Only WebSocket is passed through: h2c would tunnel requests past us.
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
    # RFC 9112, 3.2.2: the target's host wins over the field.
    if absolute is None or _HOST.fullmatch(absolute[1]) is None:
        raise Refusal(400, "the target is neither a path nor an http address")
    head.host = absolute[1]
    rest = absolute[2] or b"/"
    head.target = rest if rest.startswith(b"/") else b"/" + rest
