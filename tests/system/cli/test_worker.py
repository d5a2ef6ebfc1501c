"""`tidegate worker` as real processes: signals, kills, changed sources, and what it cannot run."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import READY_S_MAX, Up, clean_environment, processes_with, wait_until_gone
from waiting import eventually

import tidegate

SHOP = """
import asyncio, pathlib, sys, threading, time
import tidegate

app = tidegate.App("tidegate://127.0.0.1:1")

def say(*words):
    # In one piece: threads say something too.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

@app.on_start
def started():
    say("started", VERSION)

@app.on_stop
def stopped():
    say("stopped")

@app.worker("QUEUE", concurrency=4)
def handle(seconds: float, message: tidegate.Message):
    say("begun", message.message_id, "again" if message.redelivered else "first")
    time.sleep(max(seconds, 0))
    while seconds < 0 and not pathlib.Path("go").exists():
        time.sleep(0.005)
    say("done", message.message_id)
"""
# A job that lasts until the test calls `go`.
UNTIL_GO = -1


HANGING_HOOK = """
@app.on_start
async def hang():
    say("hanging")
    await asyncio.Event().wait()
"""


# One that hangs in each of the ways that there are, and in no hurry to go.
HANGING = """
@app.worker("QUEUE-hanging")
async def hang(where: str):
    say("begun", where)
    if where == "thread":
        await asyncio.to_thread(time.sleep, 1000)
    if where == "deaf loop":
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while where == "busy loop":
        time.sleep(0.01)
    time.sleep(1000)

if __name__ == "__main__":
    app.run(drain_s=0.2)
    say("returned")
"""
# As `python -m tidegate`, but for how long a goodbye may take.
BRIEF = """
import sys
import tidegate.cli.worker, tidegate.client.app, tidegate.fleet.process
tidegate.cli.worker.EXIT_MESSAGE_S = tidegate.client.app.EXIT_MESSAGE_S = 0.5
tidegate.fleet.process._PARENT_POLL_S = 0.05
from tidegate.cli import main
main()
"""
# Starts what its arguments say, which is to end with it.
PARENT = """
import os, subprocess, sys
from tidegate.fleet.process import child_environment as for_child
subprocess.run(sys.argv[1:], env={**os.environ, **for_child()})
"""


class Working:
    """`tidegate worker shop` in a folder of its own; what it prints is read line by line."""

    def __init__(
        self, folder: Path, url: str, *options: str, command: Sequence[str] | None = None
    ) -> None:
        self.folder = folder
        self._log = (folder / "worker.log").open("ab")
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "tidegate", "worker", "shop", *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=clean_environment() | {"TIDEGATE_URL": url, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
        )

    @property
    def log(self) -> str:
        return (self.folder / "worker.log").read_text()

    def next_line(self) -> list[str]:
        assert self.process.stdout is not None
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                assert selector.select(READY_S_MAX), f"nothing more: {self.log}"
                # Byte by byte: a buffered read would hide the next line from select.
                byte = os.read(self.process.stdout.fileno(), 1)
                assert byte, f"it ended: {self.log}"
                line += byte
        return line.decode().split()

    def until(self, *beginning: str) -> list[list[str]]:
        """Lines up to the first that begins so."""
        lines = [self.next_line()]
        while lines[-1][: len(beginning)] != list(beginning):
            lines.append(self.next_line())
        return lines

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[list[str]]]:
        """Its exit code, and whatever else it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=READY_S_MAX)
        return self.process.returncode, [line.split() for line in rest.decode().splitlines()]


@pytest.fixture
def shop(folder: Path, queue: str) -> Path:
    (folder / "shop.py").write_text(SHOP.replace("QUEUE", queue).replace("VERSION", "1"))
    return folder


@pytest.fixture
def running(shop: Path, up: Up) -> Iterator[list[Working]]:
    started: list[Working] = []
    yield started
    for worker in started:
        worker.end(signal.SIGKILL)


def start(
    running: list[Working],
    shop: Path,
    up: Up,
    *options: str,
    command: Sequence[str] | None = None,
) -> Working:
    worker = Working(shop, up.url, *options, command=command)
    running.append(worker)
    assert worker.next_line() == ["started", "1"]
    return worker


def put(up: Up, queue: str, *seconds: float) -> None:
    with tidegate.connect(up.url) as mq:
        mq.put_many(queue, [b"%g" % one for one in seconds])


def go(shop: Path) -> None:
    """Have the jobs end that wait for it; later ones do not wait."""
    (shop / "go").touch()


def left_in(up: Up, queue: str) -> int:
    with tidegate.connect(up.url) as mq:
        return mq.purge(queue)


def test_a_worker_that_stands_still_loses_its_job_and_its_late_ack_counts_for_nothing(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    with tidegate.connect(up.url) as mq:
        mq.create_queue(queue, policy=tidegate.QueuePolicy(lease_s=1.0))
        still = start(running, shop, up)
        put(up, queue, UNTIL_GO)
        message_id = still.until("begun")[-1][1]
        still.process.send_signal(signal.SIGSTOP)

        lost = mq.get(queue, wait=60, lease=600)
        assert (str(lost.message_id), lost.redelivered) == (message_id, True)
        go(shop)
        still.process.send_signal(signal.SIGCONT)
        assert still.until("done", message_id)
        assert still.end()[0] == 0
        lost.nack(delay=0)

        again = mq.get(queue, wait=60)
        # A busy machine may have lost it before, too: each time counts once.
        assert str(again.message_id) == message_id
        assert again.delivery_count == lost.delivery_count + 1


def test_told_to_stop_under_load_it_repeats_nothing(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    first = start(running, shop, up, "--concurrency", "8")
    put(up, queue, *[0] * 20, *[UNTIL_GO] * 180)
    lines = [first.next_line() for _ in range(2 * 20 + 8)]

    first.process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in first.log)
    go(shop)
    rest, _ = first.process.communicate(timeout=READY_S_MAX)
    lines += [line.split() for line in rest.decode().splitlines()]
    assert first.process.returncode == 0
    assert lines[-1] == ["stopped"]
    begun = [line[1] for line in lines if line[0] == "begun"]
    done = [line[1] for line in lines if line[0] == "done"]
    assert sorted(begun) == sorted(done)
    assert len(done) == 28

    second = start(running, shop, up, "--concurrency", "32")
    lines = [second.next_line() for _ in range(2 * (200 - 28))]
    again = [line[1] for line in lines if line[0] == "begun"]
    assert not set(again) & set(begun)
    assert len(again) + len(begun) == 200
    assert second.end()[0] == 0
    assert left_in(up, queue) == 0


def test_at_the_deadline_the_rest_comes_back_even_if_it_blocks_for_ever(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    hanging = start(running, shop, up, "--drain", "100ms")
    put(up, queue, 1000, 0)
    # Two threads: the second may be done before the first has said that it begins.
    lines = [hanging.next_line() for _ in ("begun", "begun", "done")]
    (done,) = {line[1] for line in lines if line[0] == "done"}
    (stuck,) = {line[1] for line in lines if line[0] == "begun"} - {done}

    code, rest = hanging.end(signal.SIGTERM)

    assert (code, rest) == (0, [["stopped"]])
    assert "the rest goes back" in hanging.log
    with tidegate.connect(up.url) as mq:
        message = mq.get(queue, wait=10)
        assert (str(message.message_id), message.redelivered) == (stuck, True)


def test_a_second_signal_hurries(up: Up, queue: str, shop: Path, running: list[Working]) -> None:
    hanging = start(running, shop, up, "--drain", "1000s")
    put(up, queue, 1000)
    hanging.until("begun")

    hanging.process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in hanging.log)
    code, _ = hanging.end(signal.SIGINT)

    assert code == 0
    assert left_in(up, queue) == 1


def test_a_third_signal_ends_a_hook_that_hangs(up: Up, shop: Path, running: list[Working]) -> None:
    with (shop / "shop.py").open("a") as source:
        source.write(HANGING_HOOK)
    hanging = start(running, shop, up)
    hanging.until("hanging")

    for count in (1, 2):
        hanging.process.send_signal(signal.SIGTERM)
        eventually(lambda count=count: hanging.log.count("stopping") == count)
    code, _ = hanging.end()

    assert code == 0
    assert "Traceback" not in hanging.log


# What hangs otherwise than functions that are not async, which have threads of ours


def hanging(
    running: list[Working], up: Up, queue: str, shop: Path, where: str, *command: str
) -> Working:
    with (shop / "shop.py").open("a") as source:
        source.write(HANGING.replace("QUEUE", queue))
    worker = start(running, shop, up, command=[sys.executable, *command])
    with tidegate.connect(up.url) as mq:
        mq.put(f"{queue}-hanging", where.encode())
    worker.until("begun")
    return worker


def test_threads_that_a_handler_has_started_are_not_waited_for_either(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    command = ("-m", "tidegate", "worker", "shop", "--drain", "200ms")
    worker = hanging(running, up, queue, shop, "thread", *command)

    code, rest = worker.end()

    # By itself at its drain: who is ended because it hangs ends with 1.
    assert (code, rest) == (0, [["stopped"]])
    assert "the rest goes back" in worker.log
    assert "did not end in time" not in worker.log
    assert "Traceback" not in worker.log
    assert left_in(up, f"{queue}-hanging") == 1


def test_a_program_of_ones_own_ends_with_its_goodbye_whatever_its_handlers_have_started(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    source = shop / "shop.py"
    program = source.read_text().replace("tidegate://127.0.0.1:1", up.url)
    source.write_text("import tidegate.client.app as app; app.GOODBYE_S = 4.0\n" + program)
    worker = hanging(running, up, queue, shop, "thread", "shop.py")

    code, rest = worker.end()

    assert (code, rest) == (1, [["stopped"], ["returned"]])
    assert "did not end in time, and is ended" in worker.log


def test_a_handler_that_blocks_the_loop_does_not_outlive_drain_and_goodbye(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    command = ("-c", BRIEF, "worker", "shop", "--drain", "200ms")
    worker = hanging(running, up, queue, shop, "loop", *command)

    code, rest = worker.end()

    assert (code, rest) == (1, [])
    assert "did not end in time, and is ended" in worker.log


def test_a_second_signal_hurries_one_whose_loop_is_blocked(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    command = ("-c", BRIEF, "worker", "shop", "--drain", "1000s")
    worker = hanging(running, up, queue, shop, "busy loop", *command)
    worker.process.send_signal(signal.SIGINT)

    # They are told apart: two of a kind at once may be one.
    code, _ = worker.end(signal.SIGTERM)

    assert code == 1


@pytest.mark.parametrize("where", ["loop", "deaf loop"])
def test_a_worker_whose_loop_is_blocked_does_not_outlive_its_parent(
    up: Up, queue: str, shop: Path, running: list[Working], where: str
) -> None:
    command = (sys.executable, "-c", BRIEF, "worker", "shop", "--drain", "200ms")
    worker = hanging(running, up, queue, shop, where, "-c", PARENT, *command)
    mark = f"TIDEGATE_PARENT_PID={worker.process.pid}\0"
    # A process that it starts looks like it for a moment.
    eventually(lambda: len(processes_with(mark)) == 1)

    worker.process.kill()

    wait_until_gone(mark)


def test_a_changed_source_starts_it_again_and_what_runs_is_finished(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    worker = start(running, shop, up, "--reload")
    put(up, queue, UNTIL_GO)
    message_id = worker.until("begun")[-1][1]

    (shop / "shop.py").write_text("this is no Python")
    eventually(lambda: "changed: starting again" in worker.log)
    go(shop)
    assert worker.until("stopped")[0] == ["done", message_id]
    (shop / "shop.py").write_text(SHOP.replace("QUEUE", queue).replace("VERSION", "2"))
    assert worker.until("started")[-1] == ["started", "2"]

    code, rest = worker.end()
    assert (code, rest) == (0, [["stopped"]])
    assert left_in(up, queue) == 0


def test_worker_ends_when_its_watcher_is_killed(up: Up, shop: Path, running: list[Working]) -> None:
    worker = start(running, shop, up, "--reload")

    worker.process.kill()

    assert worker.until("stopped")
    wait_until_gone(f"TIDEGATE_PARENT_PID={worker.process.pid}\0")


# A prefetch that sets itself


def test_a_worker_that_keeps_up_records_every_decision_about_its_prefetch(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    worker = start(running, shop, up, "--keep-up", "--telemetry", str(shop / "lake"))
    put(up, queue, *[0.05] * 150)
    for _ in range(150):
        worker.until("done")
    worker.end()

    decisions = [
        row
        for file in sorted((shop / "lake").rglob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
        if row["loop"] == "prefetch"
    ]
    assert decisions
    assert {row["service"] for row in decisions} == {queue}
    assert "for keep up" in decisions[0]["reason"]
    assert dict(decisions[0]["outputs"])["output"] >= 1.0
    assert "the prefetch is steered" in worker.log
