"""An instance that is told to end does end, and no signal starts a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import clean_environment

from tidegate.fleet import app_server

# Its loop hangs as soon as it has started; nothing is left of the drain.
BRIEF = """
import sys
from tidegate.fleet import app_server
app_server._GOODBYE_S = 0.2
sys.exit(app_server.main(["shop:app", "--drain-s", "0.1"]))
"""
HANGING = """
import time


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        print("hangs", flush=True)
        while True:
            time.sleep(0.01)
"""


def test_one_whose_loop_hangs_is_gone_soon_after_it_was_told(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANGING)
    process = subprocess.Popen(
        [sys.executable, "-c", BRIEF],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=30) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_signal_in_the_middle_of_anything_starts_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    started: list[threading.Thread] = []
    signalled = False

    def start(self: threading.Thread) -> None:
        # Whoever is interrupted while a thread is being started holds the lock that this takes.
        assert not signalled, "a thread is started by a handler of signals"
        started.append(self)

    class Served(uvicorn.Server):  # type: ignore[misc]
        def run(self, sockets: object = None) -> None:
            nonlocal signalled
            signalled = True
            self.handle_exit(signal.SIGTERM, None)
            self.handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(uvicorn, "Server", Served)
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setenv("TIDEGATE_PARENT_PID", str(os.getppid()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "quiet_shop.py").write_text("async def app(scope, receive, send): ...\n")
    monkeypatch.setattr(app_server, "end_with_parent", lambda: None)

    assert app_server.main(["quiet_shop:app"]) == 0
    assert [one.name for one in started] == ["last-exit"]
