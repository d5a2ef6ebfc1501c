"""Sticky sessions: the signed cookie `StickyHost` keeps a session on its server.

    StickyHost = host tag . seconds since 1970 in hex . signature

The host tag is a keyed hash of the server's name, so clients learn no names or addresses. The
signature covers tag and time. Gateways with the same secret accept each other's cookies, so a
session survives the death of its gateway. A cookie with a wrong signature, or an old cookie, is
ignored.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256

from tidegate.core.errors import InvalidValue

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

    def forget(self, name: str) -> None:
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
    for field in cookies:
        for pair in field.split(b";"):
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
