"""A bookshop: any ASGI application would do."""

import asyncio
import os

CHOOSING_S = 0.2


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["path"] != "/well":
        await asyncio.sleep(CHOOSING_S)
    body = f"a book, sold by process {os.getpid()}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
