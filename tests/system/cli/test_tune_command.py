"""`tidegate tune prefetch` as a user has it: what it prints, writes and refuses."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine, Up, clean_environment
from places import SUPPORT
from rabbitmq import VirtualHost

from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.core.prefetch import PrefetchModel
from tidegate.lab.faults.proxy import TcpProxy

ASKED = ("--queue", "orders", "--target", "100/s")
# 40 ms there and back, 5 ms of work: 22 msg/s a unit of prefetch, and 200 is the most.
QUICK = (
    *("--settle", "8s", "--sample", "200ms", "--to", "24", "--duration", "14s"),
    *("--handler-time", "5ms"),
)
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


@pytest.mark.paced
async def test_a_rabbitmq_far_away_gets_a_model_gains_and_a_picture(
    rabbitmq: VirtualHost, tmp_path: Path
) -> None:
    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=0.02) as cable:
        await mq.create_queue("orders")

        code, out, err = await ended(
            await started(tmp_path, cable.url, *ASKED, *QUICK, "--plot", "fit.png")
        )

    assert code == 0, err
    assert "not your handler" in out
    for word in ("R² ", "RMSE ", "poles ", "Kp = ", "Ki = ", "overshoot", "@app.worker"):
        assert word in out
    model = PrefetchModel.load(tmp_path / "orders.model.json")
    assert model.r2_test >= 0.8
    # 25 by the cable alone, 22 with the handler.
    assert 12.0 < model.worth_per_s < 30.0
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.paced
async def test_a_target_above_the_ceiling_is_refused_with_the_ceiling(
    rabbitmq: VirtualHost, tmp_path: Path
) -> None:
    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=0.02) as cable:
        await mq.create_queue("orders")

        code, out, err = await ended(
            await started(
                tmp_path,
                *(cable.url, "--queue", "orders", "--target", "900/s", *QUICK),
                *("--plot", "why.png"),
            )
        )

    assert (code, out) == (1, "")
    assert "900 msg/s is above the ceiling: " in err
    # What was measured is shown, and nothing is designed.
    assert names_in(tmp_path) == ["why.png"]


async def test_interrupted_it_leaves_the_prefetch_as_it_was(up: Up, tmp_path: Path) -> None:
    queue = "interrupted"
    async with connect(up.url) as mq:
        await mq.create_queue(queue)
        await mq.put_many(queue, [b"x"] * 1000)
        async with mq.subscribe(queue, prefetch=17):
            process = await started(tmp_path, up.url, "--queue", queue, "--target", "9/s")
            while await prefetches(mq, queue) == [17]:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)
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
            while await prefetches(mq, queue) == [17]:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)

            code, out, err = await ended(await started(tmp_path, *asked))
            first.kill()
            await ended(first)
            async with asyncio.timeout(10):
                while await prefetches(mq, queue) != [17]:  # noqa: ASYNC110  another process
                    await asyncio.sleep(0.05)
    assert (code, out) == (1, "")
    assert "is trying out prefetches" in err


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def prefetches(mq: Client, queue: str) -> list[int]:
    cluster = await mq.stats(queue)
    return [one.prefetch for node in cluster.nodes for q in node.queues for one in q.consumers]


@pytest.mark.paced
async def test_json_is_the_model_and_what_is_applied_is_the_queues_goal(
    up: Up, tmp_path: Path
) -> None:
    async with connect(up.url) as mq, TcpProxy(up.url, delay_s=0.02) as cable:
        await mq.create_queue("orders", exist_ok=True)
        code, out, err = await ended(
            await started(tmp_path, cable.url, *ASKED, *QUICK, "--apply", "--json")
        )
        policy = (await mq.queue("orders")).policy
        again = await ended(await started(tmp_path, up.url, *ASKED))

    assert code == 0, err
    printed: dict[str, Any] = json.loads(out)
    assert printed["model"]["engine"] == "tidegate"
    assert printed["model"]["controller"]["kind"] == "PI"
    assert printed["open_loop"][0]["prefetch"] == 1
    assert policy is not None
    assert policy.prefetch is not None
    assert policy.prefetch.rate_per_s == 100.0
    assert policy.prefetch.model is not None
    assert policy.prefetch.model.b == printed["model"]["b"]
    # Two hands on one wheel would measure each other.
    assert again[0] == 1
    assert "--prefetch-off" in again[2]


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


def test_nobody_there_is_said_to_who_steers_too(command_line: CommandLine) -> None:
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
def test_nobody_there_is_said(command_line: CommandLine, url: str, code: int, says: str) -> None:
    done = command_line("tune", "prefetch", url, *ASKED)

    assert done.returncode == code
    assert says in done.stderr.decode()
    assert "secret" not in done.stderr.decode()


def test_what_rabbitmq_refuses_says_what_to_do(
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


@pytest.mark.paced
def test_a_prefetch_that_does_not_matter_says_which_to_set(
    command_line: CommandLine, up: Up
) -> None:
    with connect(up.url) as mq:
        mq.create_queue("near")

    done = command_line(
        *("tune", "prefetch", up.url, "-q", "near", "--target", "9/s"),
        # Without a cable one message is there before the one before it is done.
        *("--handler-time", "20ms", "--sample", "200ms", "--to", "12"),
    )

    assert done.returncode == 1
    assert "A fixed prefetch of " in done.stderr.decode()


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
