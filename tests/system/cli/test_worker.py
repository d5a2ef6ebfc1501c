"""`tidegate worker` as real processes: signals, kills, changed sources, and what it cannot run."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import READY_S_MAX, Up, clean_environment, processes_with, wait_until_gone

import tidegate
from tidegate.cli.reloading import Sources
from tidegate.cli.working import load_app, prefetch_of
from tidegate.client.last_exit import GOODBYE_S
from tidegate.core.errors import InvalidValue

SHOP = """
import asyncio, sys, threading, time
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
    time.sleep(seconds)
    say("done", message.message_id)
"""


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
import tidegate.cli.working, tidegate.client.app, tidegate.fleet.parent
tidegate.cli.working.GOODBYE_S = tidegate.client.app.GOODBYE_S = 0.5
tidegate.fleet.parent._LOOK_S = 0.05
from tidegate.cli import main
main()
"""
# Starts what its arguments say, which is to end with it.
PARENT = """
import os, subprocess, sys
from tidegate.fleet.parent import for_child
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


def left_in(up: Up, queue: str) -> int:
    with tidegate.connect(up.url) as mq:
        return mq.purge(queue)


def test_a_worker_killed_in_mid_job_leaves_it_to_another_flagged(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    victim = start(running, shop, up)
    put(up, queue, 0.5)
    _, message_id, which = victim.until("begun")[-1]
    assert which == "first"

    victim.end(signal.SIGKILL)
    heir = start(running, shop, up)

    assert heir.until("done", message_id)[0] == ["begun", message_id, "again"]
    code, rest = heir.end()
    assert (code, rest) == (0, [["stopped"]])
    assert left_in(up, queue) == 0


def test_a_worker_that_stands_still_loses_its_job_and_its_late_ack_counts_for_nothing(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    with tidegate.connect(up.url) as mq:
        # Long enough for a busy machine to renew in time: lost once more, it would count once more.
        mq.create_queue(queue, policy=tidegate.QueuePolicy(lease_s=1.5))
        still = start(running, shop, up)
        # Longer than its lease: it is kept by renewals, and by nothing else.
        put(up, queue, 3)
        message_id = still.until("begun")[-1][1]
        still.process.send_signal(signal.SIGSTOP)

        lost = mq.get(queue, wait=20, lease=60)
        assert (str(lost.message_id), lost.redelivered) == (message_id, True)
        still.process.send_signal(signal.SIGCONT)
        assert still.until("done", message_id)
        assert still.end()[0] == 0
        lost.nack(delay=0)

        again = mq.get(queue, wait=20)
        assert (str(again.message_id), again.delivery_count) == (message_id, 3)


def test_told_to_stop_under_load_it_repeats_nothing(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    first = start(running, shop, up, "--concurrency", "8")
    # Work for five seconds: nobody is so late that it is over before it is told to stop.
    put(up, queue, *[0.1] * 400)
    lines = first.until("done")

    code, rest = first.end(signal.SIGTERM)
    lines += rest
    assert code == 0
    assert lines[-1] == ["stopped"]
    begun = [line[1] for line in lines if line[0] == "begun"]
    done = [line[1] for line in lines if line[0] == "done"]
    assert sorted(begun) == sorted(done)
    assert 0 < len(done) < 400

    second = start(running, shop, up, "--concurrency", "32")
    lines = second.until("done")
    while len([line for line in lines if line[0] == "done"]) + len(done) < 400:
        lines.append(second.next_line())
    again = [line[1] for line in lines if line[0] == "begun"]
    assert not set(again) & set(begun)
    assert len(again) + len(begun) == 400
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
    while "stopping" not in hanging.log:
        assert hanging.process.poll() is None
        time.sleep(0.01)
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
        while hanging.log.count("stopping") < count:
            assert hanging.process.poll() is None
            time.sleep(0.01)
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

    begun = time.monotonic()
    code, rest = worker.end()

    # At its drain: somebody else has the message from then on.
    assert time.monotonic() - begun < 0.2 + GOODBYE_S
    assert (code, rest) == (0, [["stopped"]])
    assert "the rest goes back" in worker.log
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
    assert len(processes_with(mark)) == 1

    worker.process.kill()

    assert wait_until_gone(mark) == []


def test_a_changed_source_starts_it_again_and_what_runs_is_finished(
    up: Up, queue: str, shop: Path, running: list[Working]
) -> None:
    worker = start(running, shop, up, "--reload")
    put(up, queue, 1.5)
    message_id = worker.until("begun")[-1][1]

    (shop / "shop.py").write_text("this is no Python")
    assert worker.until("stopped")[0] == ["done", message_id]
    (shop / "shop.py").write_text(SHOP.replace("QUEUE", queue).replace("VERSION", "2"))
    assert worker.until("started")[-1] == ["started", "2"]

    code, rest = worker.end()
    assert (code, rest) == (0, [["stopped"]])
    assert left_in(up, queue) == 0


def test_who_watches_is_killed_and_takes_the_worker_along(
    up: Up, shop: Path, running: list[Working]
) -> None:
    worker = start(running, shop, up, "--reload")

    worker.process.kill()

    assert worker.until("stopped")
    assert wait_until_gone(f"TIDEGATE_PARENT_PID={worker.process.pid}\0") == []


def test_sources_are_python_files_here_and_not_those_of_environments(folder: Path) -> None:
    for name in (".git/a.py", "venv/pyvenv.cfg", "venv/b.py", "node_modules/c.py", "shop/d.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    sources = Sources(folder)
    assert sources.changed() == []

    for name in (".git/a.py", "venv/b.py", "node_modules/c.py", "shop/notes.txt"):
        (folder / name).write_text("changed")
        os.utime(folder / name, ns=(1, 1))
    assert sources.changed() == []

    os.utime(folder / "shop/d.py", ns=(1, 1))
    (folder / "new.py").write_text("")
    assert sources.changed() == [str(folder / "new.py"), str(folder / "shop/d.py")]
    (folder / "new.py").unlink()
    assert sources.changed() == [str(folder / "new.py")]


# What cannot be run


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere_to_be_found:app", "no module 'nowhere_to_be_found': looked in .*tidegate-cli-"),
        ("wanting:app", "'wanting' was found, but imports 'not_installed_at_all'"),
        ("broken:app", "'broken' fails when imported: ZeroDivisionError: division by zero"),
        ("several:missing", r"several \(.*several.py\) has no 'missing'; there is several:shop"),
        ("several", r"several \(.*\) has no 'app'; there is several:shop"),
        ("several:number", "'number' in several .* is of type int, no tidegate.App; there is"),
        ("empty", "has no 'app'; no tidegate.App is in it"),
        (":app", "is no MODULE:APP"),
        ("several:shop[0]", "is no MODULE:APP"),
    ],
)
def test_what_was_tried_is_named(
    target: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "wanting": "import not_installed_at_all",
        "broken": "1 / 0",
        "several": "import tidegate\nnumber = 7\nshop = tidegate.App()",
        "empty": "",
    }.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(InvalidValue, match=said):
        load_app(target)


def test_an_app_is_found_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nested.py").write_text(
        "import tidegate\nclass inside:\n    shop = tidegate.App()\napp = inside.shop"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert load_app("nested:inside.shop") is load_app("nested")


def test_wrong_use_is_one_sentence_and_an_exit_code(up: Up, shop: Path, queue: str) -> None:
    (shop / "idle.py").write_text("import tidegate\napp = tidegate.App()")

    def run(*arguments: str) -> tuple[int, str]:
        finished = subprocess.run(
            [sys.executable, "-m", "tidegate", "worker", *arguments],
            env=clean_environment(),
            cwd=shop,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return finished.returncode, finished.stderr

    code, said = run("idle")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("tidegate: the app has no workers")
    code, said = run("shop", "--queues", "mails", "--url", up.url)
    assert (code, said) == (
        2,
        f"tidegate: no worker serves mails; there are workers for {queue}\n",
    )
    code, said = run("shop")
    assert code == 1
    assert "tidegate: nothing answers at 127.0.0.1:1" in said
    code, said = run("shop", "--url", "amqp://127.0.0.1:9/")
    assert (code, said.count("\n")) == (1, 1)
    assert "Connection refused: is it running, and is this its address?" in said
    code, said = run("shop", "--concurrency", "0")
    assert code == 2


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


def test_options_say_what_the_prefetch_is_steered_to(folder: Path) -> None:
    model = tidegate.PrefetchModel(a=0.1, b=70.0)
    file = folder / "model.json"
    model.save(file)

    goal = tidegate.PrefetchGoal
    assert prefetch_of(None, None, False, None, None) is None
    assert prefetch_of(5, None, False, None, None) == 5
    assert prefetch_of(None, "400/s", False, None, 20.0) == goal(rate_per_s=400.0, settle_s=20.0)
    assert prefetch_of(None, None, True, file, None) == goal(model=model)
    # For the goals that the app itself has.
    assert prefetch_of(None, None, False, file, None) == model


@pytest.mark.parametrize(
    ("prefetch", "target", "keep_up", "model", "says"),
    [
        (None, "400/s", True, None, "one of them"),
        (None, "0/s", False, None, "above 0"),
        (None, "fast", False, None, "is not a rate"),
        (None, None, True, "none.json", "cannot be read"),
        (5, None, False, "model.json", "needs no --prefetch-model"),
        (5, None, False, None, "--settle is for a goal"),
        (None, None, False, "model.json", "--settle is for a goal"),
    ],
)
def test_a_goal_that_makes_no_sense_is_said_before_anything_runs(
    folder: Path,
    prefetch: int | None,
    target: str | None,
    keep_up: bool,
    model: str | None,
    says: str,
) -> None:
    tidegate.PrefetchModel(a=0.1, b=70.0).save(folder / "model.json")
    settle_s = 30.0 if "--settle" in says else None
    with pytest.raises(InvalidValue, match=says):
        prefetch_of(prefetch, target, keep_up, None if model is None else folder / model, settle_s)
