"""A door of either engine in a process of its own, and a crowd before it in another."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
from missing_peer import skipped_where_missing
from places import SUPPORT

from tidegate.core.errors import Unavailable
from tidegate.core.services import Engine
from tidegate.doors.haproxy.door import haproxy_program
from tidegate_lab.papers.tapas.shops import ShopSetting, shops_running

# Against hanging; it says nothing about speed.
_LIMIT_S = 60.0


@contextlib.contextmanager
def started(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process beside this file that ends with its stdin."""
    command = [sys.executable, str(SUPPORT / name), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@contextlib.contextmanager
def door_before_a_shop(engine: Engine, connections: int) -> Iterator[int]:
    """The port of a door that so many can be connected to."""
    if engine is Engine.HAPROXY:
        with skipped_where_missing(Unavailable):
            haproxy_program()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 500
    if hard < wanted:
        pytest.skip(f"only {hard} files per process here, {wanted} are needed: ulimit -n")
    with (
        shops_running(ShopSetting(), 1) as (shop,),
        started("door_process.py", engine, str(shop.port)) as door,
    ):
        yield int(line_of(door).rpartition(":")[2])


@contextlib.contextmanager
def crowd_at(port: int, idle: int, slow: int) -> Iterator[None]:
    """Nobody of it has been hung up on when this ends."""
    with started("crowd_at_the_door.py", str(port), str(idle), str(slow)) as crowd:
        assert line_of(crowd) == "there"
        yield
        assert crowd.stdin is not None
        crowd.stdin.write(b"how many\n")
        crowd.stdin.flush()
        assert int(line_of(crowd)) == idle + slow, "the crowd was not there"
