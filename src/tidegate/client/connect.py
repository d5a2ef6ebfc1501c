"""`connect`: one door, with and without async."""

from __future__ import annotations

from tidegate.client.blocking import BlockingClient
from tidegate.client.client import Client, ModeName

DEFAULT_URL = "tidegate://127.0.0.1:7411"


class Connector:
    """`async with` gives a Client, `with` a BlockingClient."""

    def __init__(
        self,
        url: str,
        name: str | None,
        client_id: int | None,
        mode: ModeName,
        reconnect_s: float,
    ) -> None:
        self._arguments = (url, name, client_id, mode, reconnect_s)
        # Bad arguments fail here, at the call, not when the block is entered.
        self._make()
        self._client: Client | None = None
        self._blocking: BlockingClient | None = None

    def _make(self) -> Client:
        url, name, client_id, mode, reconnect_s = self._arguments
        return Client(url, name=name, client_id=client_id, mode=mode, reconnect_s=reconnect_s)

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
) -> Connector:
    """Connect to a node; with several in the URL, to the first that answers.

    With a `name`, the client is registered under it and keeps its id; without, it lives as
    long as its connection. `reconnect_s` is how long calls wait for a broken connection.
    """
    return Connector(url, name, client_id, mode, reconnect_s)
