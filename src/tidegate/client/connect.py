"""`connect`: one door, with and without async."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from tidegate.client.address import parse_address, shown
from tidegate.client.blocking import BlockingClient
from tidegate.client.client import Client, ModeName
from tidegate.client.credentials import find_credentials
from tidegate.client.tls import verifying_context
from tidegate.core.errors import InvalidValue

DEFAULT_URL = "tidegate://127.0.0.1:7411"


class Connector:
    """`async with` gives a Client, `with` a BlockingClient."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        # Bad arguments fail here, at the call, not when the block is entered.
        self._make()
        self._client: Client | None = None
        self._blocking: BlockingClient | None = None

    async def __aenter__(self) -> Client:
        self._client = await self._make().open()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()

    def __enter__(self) -> BlockingClient:
        self._blocking = BlockingClient(self._make)
        return self._blocking

    def __exit__(self, *_: object) -> None:
        assert self._blocking is not None
        self._blocking.close()


def connect(
    url: str = DEFAULT_URL,
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
) -> Connector:
    """Connect to a node; with several in the URL, to the first that answers.

    With a `name`, the client is registered under it and keeps its id; without, it lives as
    long as its connection. `reconnect_s` is how long calls wait for a broken connection.

    `user` and password log in; they may stand in the URL, or in TIDEGATE_USER, TIDEGATE_PASSWORD
    and TIDEGATE_PASSWORD_FILE. `tls` is what `tidegates://` says; `ca_file` (or TIDEGATE_CA_FILE)
    names the authority that has signed the node's certificate, if the machine does not know it.
    """
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
