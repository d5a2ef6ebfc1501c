"""`connect`: the entry point to every engine, with and without async.

The URL's scheme selects the engine. This package handles `tidegate://` and `tidegates://`. Other
schemes are looked up among the entry points of the group `tidegate.engines` and imported on first
use.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from tidegate.client.address import (
    SCHEME,
    SCHEME_TLS,
    find_credentials,
    parse_address,
    redact_url,
    verifying_context,
)
from tidegate.client.blocking import BlockingClient
from tidegate.client.client import Client, ModeName
from tidegate.client.engine import ENGINES, EngineClient
from tidegate.core.errors import InvalidValue

URL_VARIABLE = "TIDEGATE_URL"
DEFAULT_URL = "tidegate://127.0.0.1:7411"
AnyClient = TypeVar("AnyClient", bound=EngineClient)


def default_url() -> str:
    """Return the URL from TIDEGATE_URL, or that of a node on this machine."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


class Connector(Generic[AnyClient]):
    """Opens a client: `async with` gives a `Client`, `with` a `BlockingClient`."""

    def __init__(self, make: Callable[[], AnyClient]) -> None:
        self._make = make
        # Create a client now, so that bad arguments fail at the call and not when the block is
        # entered.
        self._make()
        self._client: AnyClient | None = None
        self._blocking: BlockingClient | None = None

    async def __aenter__(self) -> AnyClient:
        self._client = await self._make().open()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()

    def __enter__(self) -> BlockingClient:
        self._blocking = BlockingClient(cast("Callable[[], Client]", self._make))
        return self._blocking

    def __exit__(self, *_: object) -> None:
        assert self._blocking is not None
        self._blocking.close()


def connect(
    url: str | None = None,
    *,
    name: str | None = None,
    client_id: int | None = None,
    mode: ModeName = "read-write",
    reconnect_s: float = 60.0,
    user: str | None = None,
    password: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    tls: bool | ssl.SSLContext | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Connector[Client]:
    """Connect to a Tidegate cluster, or to another engine by its URL.

    Use the result with `async with` for a `Client`, or with `with` for a `BlockingClient`.

    Args:
        url: `tidegate://host:port`, several nodes separated by commas, or `tidegates://` for TLS.
            The client uses the first node that answers. `None` means TIDEGATE_URL, or a node on
            this machine. `amqp://user:password@host:port/vhost` connects to RabbitMQ (`pip install
            'tidegate[rabbitmq]'`), which supports workers and a part of this API.
        name: registers the client under this name, so that it keeps its id. `None` means a
            temporary client, which is deleted with its connection.
        client_id: identify as this registered client.
        mode: "read-only", "read-write" or "admin".
        reconnect_s: seconds for which calls wait for a connection before they raise `Unavailable`.
        user, password, password_file: the login. They may also be in the URL, or in TIDEGATE_USER,
            TIDEGATE_PASSWORD and TIDEGATE_PASSWORD_FILE.
        tls: `True` or an `ssl.SSLContext` enables TLS, like `tidegates://`.
        ca_file: PEM file of the authority that signed the node's certificate, if the machine does
            not trust it. TIDEGATE_CA_FILE has the same effect.

    Raises:
        InvalidValue: a bad argument or URL; raised at the call.
        Unavailable: no node answers; raised when the block is entered.
        NotAuthenticated: the login or the node's certificate is not accepted; raised when the block
            is entered.
    """
    url = url or default_url()
    if (scheme := _foreign_scheme(url)) is not None:
        return _engine(
            scheme,
            url,
            name=name,
            client_id=client_id,
            mode=mode,
            reconnect_s=reconnect_s,
            user=user,
            password=password,
            password_file=password_file,
            tls=tls,
            ca_file=ca_file,
        )
    address = parse_address(url)
    if password is None:
        password = address.password
    credentials = find_credentials(user or address.user, password, password_file)
    context = _context(url, address.tls, tls, ca_file)

    def make() -> Client:
        return Client(
            url,
            name=name,
            client_id=client_id,
            mode=mode,
            reconnect_s=reconnect_s,
            credentials=credentials,
            tls=context,
        )

    return Connector(make)


def _foreign_scheme(url: object) -> str | None:
    """Return the scheme of another engine's URL; `None` for our own URLs and other texts."""
    if not isinstance(url, str) or url.startswith((SCHEME, SCHEME_TLS)):
        return None
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and scheme else None


def _engine(scheme: str, url: str, **connection: Any) -> Connector[Client]:
    """Return the connector of another engine.

    Its client implements `EngineClient` and raises `InvalidValue` for calls it cannot do.
    """
    # Imported here: it takes 10 ms, and our own schemes need none.
    from importlib.metadata import entry_points

    found = {each.name: each for each in entry_points(group=ENGINES)}
    if scheme not in found:
        known = ", ".join(f"{name}://" for name in sorted({"tidegate", "tidegates", *found}))
        raise InvalidValue(f"{redact_url(url)}: nothing here speaks {scheme}://. There are {known}")
    return cast("Connector[Client]", found[scheme].load()(url, **connection))


def _context(
    url: str,
    is_tls_url: bool,
    tls: bool | ssl.SSLContext | None,
    ca_file: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is False and is_tls_url:
        raise InvalidValue(f"tls=False, but {redact_url(url)} asks for TLS: write tidegate://")
    if not (is_tls_url or tls):
        if ca_file is not None:
            raise InvalidValue("ca_file= is for TLS: write tidegates:// or tls=True")
        return None
    return verifying_context(None if ca_file is None else Path(ca_file))
