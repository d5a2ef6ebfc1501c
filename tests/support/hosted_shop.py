"""The application that these tests host; each instance writes down what it was asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

VERSION = "one"
SEEN = Path(os.environ["SHOP_SEEN"])
SERVICE_S = float(os.environ.get("SHOP_SERVICE_S", "0.01"))

Message = dict[str, Any]


def _book(path: str) -> None:
    with SEEN.open("a") as seen:
        seen.write(path + "\n")


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["method"] == "POST":
        # Before the answer, as somebody would book an order.
        _book(scope["path"])
    await asyncio.sleep(SERVICE_S)  # the application's work
    body = f"{VERSION} {os.getpid()}".encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
