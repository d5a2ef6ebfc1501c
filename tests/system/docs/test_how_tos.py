"""How-tos that need nothing but this computer are done block by block, with real processes."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from free_ports import free_ports
from places import DOCS
from reader import Reader
from waiting import eventually

HOW_TO = DOCS / "how-to"

pytestmark = pytest.mark.timeout(900)

# What the reader has already.
APPLICATION = """
async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})
"""
# Whole or not at all: who looks in between must not see half of it.
PAGER = """#!/bin/sh
echo "$@" > "$0.arguments"
cat > "$0.new" && mv "$0.new" "$0.told"
"""


def test_a_reader_puts_it_before_a_web_app(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "asgi.py").write_text(APPLICATION)
    port = str(free_ports())
    options = "--agreement shop.toml --health-path /healthz"
    names = {"8080": port, options: f"{options} --port {port}"}
    reader = Reader(folder, names=names)
    try:
        reader.read(HOW_TO / "my-web-app.md")
    finally:
        reader.end()


def test_a_reader_sees_an_alert_arrive_by_command_and_by_webhook(folder: Path) -> None:
    pager = folder / "page"
    pager.write_text(PAGER)
    pager.chmod(0o755)
    with webhook() as (address, posted):
        reader = Reader(
            folder, names={"/usr/local/bin/page": str(pager), "127.0.0.1:9093": address}
        )
        try:
            reader.read(HOW_TO / "alerts.md")
            told = folder / "page.told"
            eventually(told.exists, "the command was run")
            by_webhook = json.loads(posted.get())
        finally:
            reader.end()

    by_command = json.loads(told.read_text())
    assert by_command == by_webhook
    assert (by_command["kind"], by_command["agreement"]) == ("violation", "canary")
    assert "wait_p99" in by_command["summary"]
    assert by_command["evidence"]
    assert (folder / "page.arguments").read_text() == "--team shop\n"


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, Queue[bytes]]]:
    """Somebody who is posted to: where, and what."""
    posted: Queue[bytes] = Queue()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/hook"
            posted.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_port}", posted
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
