"""`connect`: one door, with and without async, to whatever holds messages.

The scheme of the URL says who that is. `tidegate://` is served here; any other is looked up among
the entry points of the group `tidegate.engines`, and imported when it is first asked for.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from tidegate.client.address import SCHEME, SCHEME_TLS, parse_address, shown
from tidegate.client.blocking import BlockingClient
from tidegate.client.calls import ModeName
from tidegate.client.client import Client
from tidegate.client.credentials import find_credentials
from tidegate.client.engine import ENGINES, EngineClient
from tidegate.client.tls import verifying_context
from tidegate.core.errors import InvalidValue

URL_VARIABLE = "TIDEGATE_URL"
DEFAULT_URL = "tidegate://127.0.0.1:7411"
AnyClient = TypeVar("AnyClient", bound=EngineClient)


def usual_url() -> str:
    """The node of whoever names none: as the environment says, else the one on this machine."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


class Connector(Generic[AnyClient]):
    """`async with` gives a client, `with` a BlockingClient."""

    def __init__(self, make: Callable[[], AnyClient]) -> None:
        self._make = make
        # Bad arguments fail here, at the call, not when the block is entered.
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
    """Connect to a node; with several in the URL, to the first that answers.

    Without a `url`, to the one that TIDEGATE_URL names, else to the one on this machine.

    With a `name`, the client is registered under it and keeps its id; without, it lives as
    long as its connection. `reconnect_s` is how long calls wait for a broken connection.

    `user` and password log in; they may stand in the URL, or in TIDEGATE_USER, TIDEGATE_PASSWORD
    and TIDEGATE_PASSWORD_FILE. `tls` is what `tidegates://` says; `ca_file` (or TIDEGATE_CA_FILE)
    names the authority that has signed the node's certificate, if the machine does not know it.

    `amqp://user:password@host:port/vhost` is RabbitMQ (`pip install 'tidegate[rabbitmq]'`): the
    same workers, and of the rest of this API what RabbitMQ can do.
    """
    url = url or usual_url()
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
    """The scheme of a URL that is not for our own nodes; None: it is, or it is no URL."""
    if not isinstance(url, str) or url.startswith((SCHEME, SCHEME_TLS)):
        return None
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and scheme else None


def _engine(scheme: str, url: str, **connection: Any) -> Connector[Client]:
    """The connector of another engine: its client is what EngineClient says, and says what not."""
    found = {each.name: each for each in entry_points(group=ENGINES)}
    if scheme not in found:
        known = ", ".join(f"{name}://" for name in sorted({"tidegate", "tidegates", *found}))
        raise InvalidValue(f"{shown(url)}: nothing here speaks {scheme}://. There are {known}")
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
        raise InvalidValue(f"tls=False, but {shown(url)} asks for TLS: write tidegate://")
    if not (is_tls_url or tls):
        if ca_file is not None:
            raise InvalidValue("ca_file= is for TLS: write tidegates:// or tls=True")
        return None
    return verifying_context(None if ca_file is None else Path(ca_file))
