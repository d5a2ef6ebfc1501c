"""Before a door is opened, and while nothing serves behind it yet."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tidegate.cli.door import check_engine
from tidegate.control.services.measurement import probe_door
from tidegate.core.errors import Unavailable
from tidegate.core.services import PROBE_HEADER, Engine


def test_without_httptools_the_gateway_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As for whoever has tidegate[console], and so uvicorn, but not tidegate[http].
    monkeypatch.setitem(sys.modules, "httptools", None)

    with pytest.raises(Unavailable, match=r"httptools: pip install 'tidegate\[http\]'"):
        check_engine(Engine.GATEWAY)


async def test_looking_whether_anything_serves_bears_the_mark_of_a_probe() -> None:
    marks: list[str | None] = []

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            marks.append(self.headers[PROBE_HEADER])
            self.send_response(503 if len(marks) == 1 else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert (await probe_door(address, "/", "a mark")).failure == "it answered 503"
            assert not (await probe_door(address, "/", "a mark")).failure
        finally:
            server.shutdown()
            thread.join()
    assert marks == ["a mark", "a mark"]
