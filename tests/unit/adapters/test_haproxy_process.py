"""One HAProxy process: what becomes of it when its start is cancelled, and what it said last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.core.errors import Unavailable
from tidegate.doors.haproxy import door as process_module
from tidegate.doors.haproxy.door import HaproxyProcess
from tidegate.doors.haproxy.runtime import RuntimeSocket
from tidegate.testing.virtual_time import run


class Child:
    """A child process that runs until it is killed."""

    pid = 4711

    def __init__(self, *lines: bytes) -> None:
        self.stderr = asyncio.StreamReader()
        self.stderr.feed_data(b"".join(line + b"\n" for line in lines))
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def send_signal(self, number: int) -> None:
        self.returncode = -number
        self.stderr.feed_eof()
        self._ended.set()

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode


class SilentSocket(RuntimeSocket):
    """The runtime socket of a HAProxy that is still coming up."""

    async def info(self) -> Any:
        raise Unavailable("not yet")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[Child], HaproxyProcess]:
    monkeypatch.setattr(process_module, "haproxy_program", lambda: "haproxy")

    def start(child: Child) -> HaproxyProcess:
        async def create(*_: Any, **__: Any) -> Child:
            return child

        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        return HaproxyProcess("haproxy.cfg", SilentSocket(""))

    return start


def test_cancelled_start_kills_the_child_when_it_has_not_answered(
    started: Callable[[Child], HaproxyProcess],
) -> None:
    async def running() -> None:
        child = Child()
        starting = asyncio.create_task(started(child).start(()))
        await asyncio.sleep(1.0)  # virtual: HAProxy comes up
        starting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await starting

        assert child.returncode == -9

    run(running())


def test_start_gives_the_last_line_as_the_reason_when_there_is_no_alert(
    started: Callable[[Child], HaproxyProcess],
) -> None:
    async def running() -> None:
        child = Child(b"[NOTICE] haproxy version is 2.6", b"[WARNING] out of files")
        with pytest.raises(Unavailable, match="out of files"):
            await started(child).start(())

    run(running())


def test_start_gives_the_first_alert_as_the_reason_when_there_are_several(
    started: Callable[[Child], HaproxyProcess],
) -> None:
    async def running() -> None:
        child = Child(b"[ALERT] unknown keyword", b"[ALERT] errors found", b"[NOTICE] done")
        with pytest.raises(Unavailable, match="unknown keyword"):
            await started(child).start(())

    run(running())
