"""What a client connects with: the nodes of a URL, a login, and a TLS context.

    tidegate://[user[:password]@]host:port[,host:port…]

`tidegates://` is the same over TLS. User and password are percent-encoded.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from tidegate.core.errors import InvalidValue

DEFAULT_PORT = 7411
_PORT_MAX = 65535
_DIGITS_MAX = 20
SCHEME = "tidegate://"
SCHEME_TLS = "tidegates://"


class ClusterAddress(NamedTuple):
    """The parts of a URL."""

    nodes: list[tuple[str, int]]
    tls: bool
    user: str | None
    password: str | None


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the (host, port) pairs of a URL."""
    return parse_address(url).nodes


def parse_address(url: str) -> ClusterAddress:
    """Parse a URL; raise `InvalidValue` if it is no Tidegate URL.

    A missing port means 7411. Error messages do not show the password.
    """
    if not isinstance(url, str) or not url.startswith((SCHEME, SCHEME_TLS)):
        raise InvalidValue(f"{redact_url(url)} is no Tidegate URL: write tidegate://host:port")
    tls = url.startswith(SCHEME_TLS)
    rest = url.partition("://")[2].rstrip("/")
    login, at, rest = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if at and not user:
        raise InvalidValue(f"{redact_url(url)} names no user: write tidegate://user@host:port")
    return ClusterAddress(
        _nodes(url, rest),
        tls,
        unquote(user) if user else None,
        unquote(password) if colon else None,
    )


def redact_url(url: object) -> str:
    """Return a URL for error messages, with everything before the last @ hidden."""
    if not isinstance(url, str) or "@" not in url:
        return repr(url)
    scheme, _, rest = url.partition("://")
    return repr(f"{scheme}://***@{rest.rpartition('@')[2]}")


def _nodes(url: str, rest: str) -> list[tuple[str, int]]:
    if not rest:
        raise InvalidValue(f"{redact_url(url)} names no host: write tidegate://host:port")
    nodes = []
    for part in rest.split(","):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        # `isdigit` alone accepts superscripts, which `int` rejects.
        is_number = port.isascii() and port.isdigit() and len(port) <= _DIGITS_MAX
        if not is_number or not 0 < int(port) <= _PORT_MAX:
            raise InvalidValue(f"{port!r} in {redact_url(url)} is no port: 1 to {_PORT_MAX}")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare:
            raise InvalidValue(f"{redact_url(url)} names no host: write tidegate://host:port")
        if ":" in bare and bare == host:
            raise InvalidValue(f"{host!r} in {redact_url(url)}: write tidegate://[{host}]:{port}")
        nodes.append((bare, int(port)))
    return nodes


# The login of a client: from the URL, from arguments, or from the environment.
#
#     TIDEGATE_USER, TIDEGATE_PASSWORD, TIDEGATE_PASSWORD_FILE
#
# A password in the call or the URL takes precedence over a file, and a file over the environment.
# No repr and no error shows a password.


USER_VARIABLE = "TIDEGATE_USER"
PASSWORD_VARIABLE = "TIDEGATE_PASSWORD"
PASSWORD_FILE_VARIABLE = "TIDEGATE_PASSWORD_FILE"


class Credentials:
    """A user name and its password."""

    __slots__ = ("password", "user")

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self.password = password

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ***)"


def find_credentials(
    user: str | None,
    password: str | None,
    password_file: str | os.PathLike[str] | None,
    environment: Mapping[str, str] = os.environ,
) -> Credentials | None:
    """Return the credentials to log in with; `None` means no login.

    A node without users accepts clients without a login. A user without a password, or a password
    without a user, raises `InvalidValue`.
    """
    user = user or environment.get(USER_VARIABLE)
    if not user:
        if password is not None or password_file is not None:
            raise InvalidValue("a password without a user: whose is it?")
        return None
    if password is None and password_file is not None:
        password = read_password_file(Path(password_file))
    if password is None:
        password = environment.get(PASSWORD_VARIABLE)
    if password is None and (named := environment.get(PASSWORD_FILE_VARIABLE)):
        password = read_password_file(Path(named))
    if password is None:
        raise InvalidValue(
            f"no password for user {user!r}: set {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}, "
            "or give password= or password_file="
        )
    return Credentials(user, password)


def read_password_file(file: Path) -> str:
    """Return the first line of a password file; raise `InvalidValue` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
        raise InvalidValue(f"the password file {file} cannot be read: {reason}") from None


# TLS contexts of clients: at least TLS 1.2, with the host's certificate verified.


CA_FILE_VARIABLE = "TIDEGATE_CA_FILE"


def verifying_context(authority: Path | None = None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a PEM file, or those of the machine.

    `authority` is the file; `None` means the file in TIDEGATE_CA_FILE, if set.
    """
    if authority is None and (named := os.environ.get(CA_FILE_VARIABLE)):
        authority = Path(named)
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as failure:
        raise InvalidValue(f"{authority} holds no certificates in PEM: {failure}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
