"""One uvicorn process of an application: it answers, drains, and says why when it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hosted_modules import BAD_START, body_of, write_shop
from waiting import eventually_async

from tidegate.fleet.applications import AppProcess
from tidegate.fleet.process import process_identity

KEEPER = """
import asyncio
from tidegate.fleet.applications import AppProcess
async def main():
    shop = AppProcess("shop:app")
    shop.start()
    while await shop.trouble() is not None:
        await asyncio.sleep(0.01)
    print(shop.pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""
StartApp = Callable[..., AppProcess]


async def address_of(app: AppProcess) -> str:
    """Return its address when it answers."""

    async def answers() -> bool:
        return await app.trouble() is None

    await eventually_async(answers, "it answers")
    return app.address


@pytest.fixture
async def app_of(tmp_path: Path) -> AsyncIterator[StartApp]:
    made: list[AppProcess] = []

    def make(target: str = "shop:app", **options: object) -> AppProcess:
        made.append(AppProcess(target, folder=tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for process in made:
        process.kill()
        await process.ended()


async def test_app_process_answers_open_requests_before_it_ends(
    app_of: StartApp, tmp_path: Path
) -> None:
    write_shop(tmp_path)
    shop = app_of(environment={"TIDEGATE_INSTANCE": "7"})
    shop.start()
    address = await address_of(shop)
    assert await body_of(address) == f"welcome pid {shop.pid} instance 7"

    slow = asyncio.create_task(body_of(address, "/slow"))
    await eventually_async((tmp_path / "begun").exists)
    shop.terminate()
    await eventually_async(lambda: _is_refused(address), "it still takes connections")
    (tmp_path / "go").touch()

    assert (await slow).startswith("welcome")
    await shop.ended()
    assert shop.exit_code == -signal.SIGTERM


def _is_refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.mark.parametrize(
    ("module", "target", "words"),
    [
        ("raise RuntimeError('no prices')", "shop:app", "RuntimeError: no prices"),
        ("app = 3", "shop:app", "is of type int, no ASGI application"),
        ("", "shop:app", "has no 'app'"),
        (BAD_START, "shop:app", "shop:app does not start: the till is locked"),
    ],
)
async def test_an_application_that_does_not_start_is_reported_in_words(
    app_of: StartApp, tmp_path: Path, module: str, target: str, words: str
) -> None:
    (tmp_path / "shop.py").write_text(module)
    shop = app_of(target)
    shop.start()
    await shop.ended()
    assert words in shop.exit_text


async def test_a_port_that_is_taken_is_reported_before_anything_is_imported(
    app_of: StartApp, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("raise RuntimeError('this was imported')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shop = app_of(port=port)
        shop.start()
        await shop.ended()
    assert f"listen on 127.0.0.1:{port}: Address already in use" in shop.exit_text


async def test_app_process_that_hangs_in_its_import_is_reported(
    app_of: StartApp, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("open('begun', 'w'); import time; time.sleep(3600)")
    shop = app_of()
    shop.start()
    await eventually_async((tmp_path / "begun").exists)
    assert shop.late(0.05, await shop.trouble()) == (
        "shop:app still imports or starts up after 50ms: it may hang there"
    )
    await shop.stop()
    assert shop.exit_code == -signal.SIGTERM


async def test_app_process_ends_with_its_parent(tmp_path: Path) -> None:
    write_shop(tmp_path)
    keeper = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KEEPER,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert keeper.stdout is not None
    pid = int(await keeper.stdout.readline())
    keeper.kill()
    await keeper.wait()
    await eventually_async(lambda: process_identity(pid) is None)
