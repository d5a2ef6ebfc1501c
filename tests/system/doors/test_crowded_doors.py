"""Slowloris and idle connections by the thousand at a door of either engine: others feel little."""

from __future__ import annotations

import contextlib
import http.client
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import pytest
from missing_peer import skipped_where_missing
from places import SUPPORT

from tidegate.adapters.haproxy.program import haproxy_program
from tidegate.core.errors import Unavailable
from tidegate.core.hosting import Engine
from tidegate.lab.tapas.bookshop import ShopSetting
from tidegate.lab.tapas.shops import shops_running

IDLE, SLOW = 4000, 1000
# The crowd comes and goes so often. Of the rounds with it and those without, the medians count:
# what the machine does besides comes and goes, too, but most rounds have to be good.
ROUNDS, REQUESTS = 5, 1000
# A browser opens a connection now and then: it has to be taken, too.
NEW_CONNECTION_EVERY = 10
ANSWER_S_MAX = 20.0


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
            process.wait(ANSWER_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def p99_ms(port: int) -> float:
    """Of a client that asks, waits for its answer, and asks again."""
    took = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    for number in range(REQUESTS):
        if number % NEW_CONNECTION_EVERY == 0:
            connection.close()
        begun = time.perf_counter()
        connection.request("GET", "/choose?book=7")
        answer = connection.getresponse()
        answer.read()
        took.append(1e3 * (time.perf_counter() - begun))
        assert answer.status == 200
    connection.close()
    return sorted(took)[int(0.99 * len(took))]


@pytest.mark.alone
@pytest.mark.parametrize("engine", [Engine.GATEWAY, Engine.HAPROXY])
def test_thousands_of_idle_connections_and_slow_heads_hardly_disturb_a_client(
    engine: Engine,
) -> None:
    if engine is Engine.HAPROXY:
        with skipped_where_missing(Unavailable):
            haproxy_program()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + SLOW + 500
    if hard < wanted:
        pytest.skip(f"only {hard} files per process here, {wanted} are needed: ulimit -n")
    with (
        shops_running(ShopSetting(), 1) as (shop,),
        started("door_process.py", engine, str(shop.port)) as door,
    ):
        port = int(line_of(door).rpartition(":")[2])
        p99_ms(port)
        calm, crowded = [], []
        for _ in range(ROUNDS):
            calm.append(p99_ms(port))
            with started("crowd_at_the_door.py", str(port), str(IDLE), str(SLOW)) as crowd:
                assert line_of(crowd) == "there"
                crowded.append(p99_ms(port))
                assert crowd.stdin is not None
                crowd.stdin.write(b"how many\n")
                crowd.stdin.flush()
                assert int(line_of(crowd)) == IDLE + SLOW, "the crowd was not there"
        ratio = median(crowded) / median(calm)
        print(
            f"{engine}: p99 {median(calm):.2f} ms calm, {median(crowded):.2f} ms crowded: "
            f"× {ratio:.2f}"
        )
        assert ratio <= 3.0, (calm, crowded)
