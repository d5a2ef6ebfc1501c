"""The heads that are sent to servers and clients, written from their parsed parts.

`X-Forwarded-For`, `-Proto` and `-Host` tell the server who the client is. Values that a peer sends
in these fields or in `Forwarded` count only if the peer is trusted. Otherwise they are dropped,
also if spelled with underscores, which many applications cannot tell from dashes.

`LoadBalanced` names the gateways that a request has passed. A gateway that finds its own name there
has received its own request, and rejects it (508).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from tidegate.gateway.refusal import Refusal
from tidegate.gateway.request_head import RequestHead
from tidegate.gateway.response_reader import ResponseHead
from tidegate.gateway.sticky_session import without_sticky

_VIA = b"Via: 1.1 tidegate\r\n"
# More gateways in a chain than any sensible setup has.
_HOPS_MAX = 8
_TOLD_BY_PROXIES = (b"x-forwarded-", b"x-real-ip", b"forwarded", b"true-client-ip")


@dataclass(frozen=True)
class Peer:
    """The other end of a client's connection."""

    address: str
    trusted: bool


class TrustedPeers:
    """Networks that are trusted to say who the client is."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(one) for one in networks]

    def peer(self, address: str) -> Peer:
        try:
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            return Peer("unknown", False)
        return Peer(str(ip), any(ip in network for network in self._networks))


def request_to_server(
    head: RequestHead, peer: Peer, gateway: bytes, server_host: bytes, *, sticky: bool
) -> bytes:
    """Return the head for a server; raise `Refusal` if the request passed here before."""
    parts = [
        b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method, head.target, head.host or server_host)
    ]
    told: dict[bytes, bytes] = {}
    for name, lower, value in head.fields:
        # Few fields begin with these letters, so one byte decides for most of them.
        if lower[0] in b"xft_" and _told_by_proxy(lower):
            if peer.trusted and b"_" not in lower:
                told[lower] = told[lower] + b", " + value if lower in told else value
            continue
        parts.append(b"%b: %b\r\n" % (name, value))
    if head.cookies:
        cookies = without_sticky(head.cookies) if sticky else b"; ".join(head.cookies)
        if cookies:
            parts.append(b"Cookie: %b\r\n" % cookies)
    parts.append(_forwarded(head, peer, told, server_host))
    parts.append(b"LoadBalanced: %b\r\n" % _balanced(head.balanced_by, gateway))
    parts.append(_VIA)
    if head.chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    elif head.content_length is not None:
        parts.append(b"Content-Length: %d\r\n" % head.content_length)
    parts.append(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" if head.websocket else b"\r\n"
    )
    return b"".join(parts)


def response_to_client(
    head: ResponseHead,
    method: bytes,
    *,
    client_minor: int,
    keep_alive: bool,
    chunked: bool,
    set_cookie: bytes | None,
    now_s: float,
) -> bytes:
    """Return the head for a client."""
    parts = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    parts += [b"%b: %b\r\n" % (name, value) for name, _, value in head.fields]
    if head.interim:
        return b"".join((*parts, b"\r\n"))
    if not head.has_date:
        parts.append(_date(int(now_s)))
    parts.append(_VIA)
    if set_cookie is not None:
        parts.append(b"Set-Cookie: %b\r\n" % set_cookie)
    if head.status == 101:
        parts.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % head.upgrade)
        return b"".join(parts)
    if chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    elif head.content_length is not None and head.status != 204:
        parts.append(b"Content-Length: %d\r\n" % head.content_length)
    if not keep_alive:
        parts.append(b"Connection: close\r\n\r\n")
    elif client_minor == 0:
        parts.append(b"Connection: keep-alive\r\n\r\n")
    else:
        parts.append(b"\r\n")
    return b"".join(parts)


def refusal_to_client(refusal: Refusal, method: bytes, *, keep_alive: bool, now_s: float) -> bytes:
    """Return a complete response of the gateway itself."""
    body = f"{refusal.status} {refusal.phrase}: {refusal.why}\n".encode()
    head = [
        b"HTTP/1.1 %d %b\r\n" % (refusal.status, refusal.phrase.encode()),
        b"Content-Type: text/plain; charset=utf-8\r\n",
        b"Content-Length: %d\r\n" % len(body),
        _date(int(now_s)),
        _VIA,
    ]
    if refusal.retry_after_s is not None:
        head.append(b"Retry-After: %d\r\n" % refusal.retry_after_s)
    head.append(b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")
    return b"".join(head) + (b"" if method == b"HEAD" else body)


def _told_by_proxy(lower: bytes) -> bool:
    return lower.replace(b"_", b"-").startswith(_TOLD_BY_PROXIES)


def _forwarded(
    head: RequestHead, peer: Peer, told: dict[bytes, bytes], server_host: bytes
) -> bytes:
    address = peer.address.encode()
    before = told.pop(b"x-forwarded-for", None)
    chain = address if before is None else before + b", " + address
    told.setdefault(b"x-forwarded-proto", b"http")
    told.setdefault(b"x-forwarded-host", head.host or server_host)
    if b"forwarded" in told:
        node = b'"[%b]"' % address if b":" in address else address
        told[b"forwarded"] += b", for=%b;proto=http" % node
    rest = b"".join(b"%b: %b\r\n" % one for one in told.items())
    return b"X-Forwarded-For: %b\r\n%b" % (chain, rest)


def _balanced(before: bytes, gateway: bytes) -> bytes:
    if not before:
        return gateway
    passed = [one.strip() for one in before.split(b",")]
    if gateway in passed or len(passed) >= _HOPS_MAX:
        raise Refusal(508, "this request has been here before: a server's address is a gateway's")
    return before + b", " + gateway


@lru_cache(maxsize=2)
def _date(now_s: int) -> bytes:
    return b"Date: %b\r\n" % formatdate(now_s, usegmt=True).encode()
