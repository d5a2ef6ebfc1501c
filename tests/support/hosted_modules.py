"""ASGI applications as users write them, good and bad, put where a test wants them."""

from __future__ import annotations

import asyncio
from pathlib import Path

# Answers who it is; on /slow not before a file `go` lies where it runs; on /stuck never more.
GOOD = """
import asyncio, os, pathlib, time

async def app(scope, receive, send):
    assert scope["type"] == "http"
    path = scope["path"]
    if path == "/stuck":
        time.sleep(3600)
    if path == "/slow":
        pathlib.Path("begun").touch()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
    text = f"{WORDS} pid {os.getpid()} instance {os.environ.get('TIDEGATE_INSTANCE')}"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": text.encode()})
"""

BAD_START = """
async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "Traceback:\\nthe till is locked"})
"""


def write_shop(folder: Path, words: str = "welcome") -> Path:
    """A folder with the module `shop`, which says these words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.py").write_text(f"WORDS = {words!r}\n{GOOD}")
    return folder


async def body_of(address: str, path: str = "/") -> str:
    """What it answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return body.partition(b"\r\n")[2].partition(b"\r\n")[0].decode()
    finally:
        writer.close()
