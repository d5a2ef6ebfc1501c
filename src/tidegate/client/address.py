"""Parsing of `tidegate://[user[:password]@]host:port[,host:port…]`.

`tidegates://` is the same over TLS. User and password are percent-encoded.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from tidegate.core.errors import InvalidValue

DEFAULT_PORT = 7411
_PORT_MAX = 65535
_DIGITS_MAX = 20
SCHEME = "tidegate://"
SCHEME_TLS = "tidegates://"


class Address(NamedTuple):
    """The parts of a URL."""

    nodes: list[tuple[str, int]]
    tls: bool
    user: str | None
    password: str | None


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the (host, port) pairs of a URL."""
    return parse_address(url).nodes


def parse_address(url: str) -> Address:
    """Parse a URL; raise `InvalidValue` if it is no Tidegate URL.

    A missing port means 7411. Error messages do not show the password.
    """
    if not isinstance(url, str) or not url.startswith((SCHEME, SCHEME_TLS)):
        raise InvalidValue(f"{shown(url)} is no Tidegate URL: write tidegate://host:port")
    tls = url.startswith(SCHEME_TLS)
    rest = url.partition("://")[2].rstrip("/")
    login, at, rest = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if at and not user:
        raise InvalidValue(f"{shown(url)} names no user: write tidegate://user@host:port")
    return Address(
        _nodes(url, rest),
        tls,
        unquote(user) if user else None,
        unquote(password) if colon else None,
    )


def shown(url: object) -> str:
    """Return a URL for error messages, with everything before the last @ hidden."""
    if not isinstance(url, str) or "@" not in url:
        return repr(url)
    scheme, _, rest = url.partition("://")
    return repr(f"{scheme}://***@{rest.rpartition('@')[2]}")


def _nodes(url: str, rest: str) -> list[tuple[str, int]]:
    if not rest:
        raise InvalidValue(f"{shown(url)} names no host: write tidegate://host:port")
    nodes = []
    for part in rest.split(","):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        # `isdigit` alone accepts superscripts, which `int` rejects.
        is_number = port.isascii() and port.isdigit() and len(port) <= _DIGITS_MAX
        if not is_number or not 0 < int(port) <= _PORT_MAX:
            raise InvalidValue(f"{port!r} in {shown(url)} is no port: 1 to {_PORT_MAX}")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare:
            raise InvalidValue(f"{shown(url)} names no host: write tidegate://host:port")
        if ":" in bare and bare == host:
            raise InvalidValue(f"{host!r} in {shown(url)}: write tidegate://[{host}]:{port}")
        nodes.append((bare, int(port)))
    return nodes
