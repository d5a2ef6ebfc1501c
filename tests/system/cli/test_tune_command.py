"""`tidegate tune prefetch` as a user has it: interrupted, killed, and what it refuses.

What it measures, prints and writes is in `tests/unit/cli/test_tune_in_virtual_time.py`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine, Up, clean_environment
from places import SUPPORT
from rabbitmq import VirtualHost
from waiting import eventually_async

from tidegate.client.client import Client
from tidegate.client.connect import connect

ASKED = ("--queue", "orders", "--target", "100/s")
NOBODY = "127.0.0.1:9"


async def started(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    """In a process of its own, while the test goes on."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "tune", "prefetch", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(),
        cwd=folder,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_interrupted_it_leaves_the_prefetch_as_it_was(up: Up, tmp_path: Path) -> None:
    queue = "interrupted"
    async with connect(up.url) as mq:
        await mq.create_queue(queue)
        await mq.put_many(queue, [b"x"] * 1000)
        async with mq.subscribe(queue, prefetch=17):
            process = await started(tmp_path, up.url, "--queue", queue, "--target", "9/s")
            await until_prefetch(mq, queue, lambda found: found != [17])
            process.send_signal(signal.SIGINT)
            code, out, err = await ended(process)

            assert await prefetches(mq, queue) == [17]
    assert (code, out) == (130, "")
    assert "stopped, and nothing was designed: the consumer of interrupted has the prefetch" in err
    assert "Traceback" not in err
    assert names_in(tmp_path) == []


async def test_a_second_tune_is_refused_and_one_that_is_killed_leaves_no_trace(
    up: Up, tmp_path: Path
) -> None:
    queue = "tuned-twice"
    asked = (up.url, "--queue", queue, "--target", "9/s")
    async with connect(up.url) as mq:
        await mq.create_queue(queue)
        await mq.put_many(queue, [b"x"] * 1000)
        async with mq.subscribe(queue, prefetch=17):
            first = await started(tmp_path, *asked)
            await until_prefetch(mq, queue, lambda found: found != [17])

            code, out, err = await ended(await started(tmp_path, *asked))
            first.kill()
            await ended(first)
            await until_prefetch(mq, queue, lambda found: found == [17])
    assert (code, out) == (1, "")
    assert "is trying out prefetches" in err


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def prefetches(mq: Client, queue: str) -> list[int]:
    cluster = await mq.stats(queue)
    return [one.prefetch for node in cluster.nodes for q in node.queues for one in q.consumers]


async def until_prefetch(mq: Client, queue: str, is_so: Callable[[list[int]], bool]) -> None:
    """Another process sets it."""

    async def look() -> bool:
        return is_so(await prefetches(mq, queue))

    await eventually_async(look)


async def test_interrupted_on_rabbitmq_it_takes_its_probe_with_it(
    rabbitmq: VirtualHost, tmp_path: Path
) -> None:
    async with connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        process = await started(tmp_path, rabbitmq.url, *ASKED)
        assert process.stderr is not None
        said = ""
        # It says so when the first sample has been measured.
        while ", from prefetch" not in said:
            line = await process.stderr.readline()
            assert line, f"it ended: {said}"
            said += line.decode()
        assert "not your handler" in said
        probing = set(rabbitmq.queues()) - {"orders"}
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)

        assert len(probing) == 1
        await eventually_async(lambda: set(rabbitmq.queues()) == {"orders"})
    assert (code, out) == (130, "")
    assert "the probe and its queue are gone, and orders is as it was" in err
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--target", "0/s"), "above 0"),
        (("--target", "0"), "such as 400/s"),
        (("--target", "fast"), "such as 400/s"),
        (("--target", "-4/s"), "such as 400/s"),
        (("--target", "9/s", "--settle", "0s"), "no time at all"),
        (("--target", "9/s", "--overshoot", "some"), "is not a part"),
        (("--target", "9/s", "--overshoot", "60%"), "0% to 50%"),
        (("--target", "9/s", "--kind", "PD"), "'PD'"),
        (("--target", "9/s", "--from", "0"), "--from"),
        (("--target", "9/s", "--from", "9", "--to", "3"), "too few prefetches"),
        (("--target", "9/s", "--to", "70000"), "at most 65535"),
        (("--target", "9/s", "--sample", "1ms"), "too few messages"),
        (("--target", "9/s", "--sample", "40s"), "cannot settle"),
        (("--target", "9/s", "--duration", "10s"), "give 1.367m, or a shorter --sample"),
        (("--target", "9/s", "--plot", "x.gif"), "no picture"),
        (("--target", "9/s", "--out", "/nowhere/x.json"), "no folder"),
        (("--target", "9/s", "--size", "big"), "not a size"),
        (("--target", "9/s", "--size", "10GiB"), "would fill the broker"),
        (("--target", "9/s", "--handler-time", "1h"), "or a longer --sample"),
        (("--target", "9/s", "--apply"), "@app.worker"),
        (("--target", "9/s", "--worker", "no_such_module:app"), "no module"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_connected(
    command_line: CommandLine, arguments: tuple[str, ...], says: str
) -> None:
    done = command_line("tune", "prefetch", f"amqp://{NOBODY}/", "-q", "orders", *arguments)

    assert done.returncode == (1 if says == "no folder" else 2)
    assert says in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_steer_reports_a_refused_connection(command_line: CommandLine) -> None:
    done = command_line("steer", f"amqp://{NOBODY}/", "--queue", "orders", "--replicas", "1..2")

    assert done.returncode == 1
    assert "Connection refused: is it running, and is this its address?" in done.stderr.decode()


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        (f"amqp://{NOBODY}/", 1, "is it running"),
        (f"tidegate://{NOBODY}", 1, NOBODY),
        ("http://127.0.0.1/", 2, "is neither amqp://"),
        ("orders", 2, "tidegate://host:port"),
        ("amqp://me:secret@127.0.0.1/", 2, "read by everybody"),
        ("amqp:///", 2, "no host"),
    ],
)
def test_tune_reports_a_missing_broker_without_the_password(
    command_line: CommandLine, url: str, code: int, says: str
) -> None:
    done = command_line("tune", "prefetch", url, *ASKED)

    assert done.returncode == code
    assert says in done.stderr.decode()
    assert "secret" not in done.stderr.decode()


def test_tune_explains_what_rabbitmq_refuses(
    command_line: CommandLine, rabbitmq: VirtualHost
) -> None:
    nobody = rabbitmq.url_of("nobody", "wrong")
    powerless = rabbitmq.user()
    with connect(rabbitmq.url) as mq:
        mq.create_queue("others")

    def said(url: str, queue: str) -> str:
        asked = ("--queue", queue, "--target", "9/s")
        done = command_line("tune", "prefetch", *asked, environment={"TIDEGATE_URL": url})
        assert done.returncode == 1
        return done.stderr.decode()

    assert "no queue 'orders'" in said(rabbitmq.url, "orders")
    assert "the user or the password" in said(nobody, "others")
    assert "set_permissions" in said(powerless, "others")


def test_a_node_without_the_queue_says_so(command_line: CommandLine, up: Up) -> None:
    done = command_line("tune", "prefetch", up.url, "-q", "no-such-queue", "--target", "9/s")

    assert done.returncode == 1
    assert "no-such-queue" in done.stderr.decode()


def test_a_worker_without_that_queue_says_which_it_has(command_line: CommandLine, up: Up) -> None:
    done = command_line(
        *("tune", "prefetch", up.url, "-q", "others", "--target", "9/s"),
        *("--worker", "tuned_application:app"),
        environment={"PYTHONPATH": f"{SUPPORT}:{':'.join(sys.path)}"},
    )

    assert done.returncode == 2
    assert "it has workers for orders" in done.stderr.decode()


@pytest.mark.parametrize(("package", "extra"), [("control", "tune"), ("aio_pika", "rabbitmq")])
def test_a_missing_package_says_what_to_install(package: str, extra: str) -> None:
    # As Python has it where the package is not installed.
    without = f"import sys; sys.modules[{package!r}] = None; from tidegate.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", without, "tune", "prefetch", f"amqp://{NOBODY}/", *ASKED],
        capture_output=True,
        env=clean_environment(),
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert f"pip install 'tidegate[{extra}]'" in done.stderr.decode()
