"""An instance that is told to end: its handler of signals starts no thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tidegate.fleet import app_server


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
