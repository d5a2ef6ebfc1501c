"""A console over a node, both in this process, spoken to over HTTP as browsers and programs do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tidegate.broker.node import Node
from tidegate.client.address import Credentials
from tidegate.client.client import Client
from tidegate.console.application import ConsoleOptions, console_application, listening, serving
from tidegate.console.security import allowed_hosts


class Console:
    """Where it is, and a client of it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(**self._plain)

    def browser(self) -> httpx.AsyncClient:
        """One that says where its requests come from, as browsers do."""
        said = {"origin": self.address, "sec-fetch-site": "same-origin"}
        return httpx.AsyncClient(**self._plain, headers=said)

    @property
    def _plain(self) -> dict[str, Any]:
        # No TLS: reading whom it would trust takes as long as many a test.
        return {"base_url": self.address, "timeout": 60.0, "verify": False}

    async def json(self, path: str, **parameters: Any) -> Any:
        answer = await self.http.get(f"/api{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.asynccontextmanager
async def console_of(
    node: Node, folder: Path | None = None, **chosen: Any
) -> AsyncIterator[Console]:
    """While this lasts it is served."""

    def connect(credentials: Credentials | None) -> Client:
        return Client(node.address, mode="admin", reconnect_s=20.0, credentials=credentials)

    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    options = ConsoleOptions(
        connect=connect,
        hosts=allowed_hosts("127.0.0.1", port, [], tls=False),
        port=port,
        folder=folder,
        **{"store": node.store, **chosen},
    )
    async with serving(console_application(options), listener):
        console = Console(port)
        try:
            yield console
        finally:
            await console.http.aclose()


async def events(
    http: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """Server-sent events, as they come."""
    async with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
