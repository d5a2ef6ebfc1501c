"""Commands as processes of their own: each group of them once, pipes, signals and terminals.

What commands say and do is asked in tests/unit/cli and tests/integration/cli, in one process.
Groups that are missing here have files of their own in tests/system.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from command_line import Finished, Up, clean_environment, tidegate
from waiting import LIMIT_S, eventually

import tidegate as client
from tidegate.cli.command_line import EMPTY_RESULT, FAILED

PASSWORD = "correct horse battery"
AGREEMENT = 'name = "shop"\nhttp = "shop"\n[metrics.response_p95]\nbreach = "1s"\n'

Ask = Callable[..., Finished]


@pytest.fixture
def ask(up: Up) -> Ask:
    """Run a command in a process of its own, about the node and the store that run."""
    data = str(up.folder / "data")
    return lambda *words: tidegate(
        *words, environment={"TIDEGATE_URL": up.url, "TIDEGATE_STORE__DATA": data}
    )


def started(
    words: Sequence[str], url: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment() | {"TIDEGATE_URL": url} | dict(environment or {}),
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nodes"], 0, b"node"),
        (["queues"], 0, b"queue"),
        (["policy", "nonesuch"], FAILED, b"no queue named 'nonesuch'"),
        (["topics"], 0, b"topic"),
        (["prefetch", "nonesuch", "5"], FAILED, b"no queue named 'nonesuch'"),
        (["explain"], 0, b"nothing was decided"),
        (["config"], 0, b"[node]"),
        (["services"], EMPTY_RESULT, b"nothing is hosted"),
        (["override", "nonesuch"], FAILED, b"no service is called 'nonesuch'"),
        (["sla"], EMPTY_RESULT, b""),
        (["learn", "--lake", "/no/such/lake"], FAILED, b"/no/such/lake"),
        (["simulate", "/no/such/trace.csv"], 2, b"/no/such/trace.csv"),
        (["lab", "list"], 0, b"telesto"),
        (["fleet"], 0, b""),
        (["bench", "run", "--rate", "50", "--seconds", "1"], 0, b""),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_command_of_each_group_runs_alone(
    ask: Ask, words: list[str], code: int, says: bytes
) -> None:
    finished = ask(*words)

    assert finished.returncode == code, finished.stderr
    assert says in finished.stdout + finished.stderr
    assert b"Traceback" not in finished.stderr


def test_an_agreement_is_checked(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(AGREEMENT)

    finished = ask("agreement", "check", str(tmp_path / "shop.toml"))

    assert finished.returncode == 0, finished.stderr


def test_get_waits_for_a_message(up: Up, queue: str) -> None:
    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        waiting = started(["get", queue, "--wait", "60s"], up.url)
        try:

            def has_a_reader() -> bool:
                assert waiting.poll() is None
                numbers = mq.stats(queue).queue(queue)
                return numbers is not None and bool(numbers.readers_waiting)

            eventually(has_a_reader)
            mq.put(queue, b"at last")
            output, _ = waiting.communicate(timeout=LIMIT_S)
        finally:
            waiting.kill()
            waiting.wait()
    assert output == b"at last\n"


def test_a_reader_that_has_gone_takes_no_message_with_it(up: Up, queue: str) -> None:
    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        mq.put_many(queue, [b"x" * 1000 for _ in range(500)])
        command = f"{sys.executable} -m tidegate get {queue} --count 0 | head -c 1000 > /dev/null"
        environment = clean_environment() | {"TIDEGATE_URL": up.url}
        subprocess.run(["sh", "-c", command], env=environment, check=False, capture_output=True)
        left = 0

        def has_them() -> bool:
            nonlocal left
            left += mq.purge(queue)
            # A pipe holds 64 KiB; what was not even written there comes back into the queue.
            return left >= 500 - 66 - 10

        eventually(has_them)


def test_messages_of_a_topic_are_printed_as_they_come(up: Up, queue: str) -> None:
    topic = f"topic-of-{queue}"
    with client.connect(up.url) as mq:
        mq.create_topic(topic)
        with started(["subscribe", topic, "--count", "2"], up.url) as following:
            assert following.stderr is not None
            assert following.stdout is not None
            assert b"waiting" in following.stderr.readline()
            for text in (b"one", b"two"):
                assert mq.publish(topic, text) == 1
            assert following.stdout.read() == b"one\ntwo\n"
            assert following.wait(LIMIT_S) == 0
        # Its queue went with it.
        assert not [one.name for one in mq.queues() if one.name.startswith(f"{topic}.")]


def test_an_ending_that_is_interrupted_leaves_the_queue_as_it_was(
    ask: Ask, up: Up, queue: str
) -> None:
    def asked(*words: str) -> dict[str, object]:
        done = ask("scale", queue, *words, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        asked("--min", "1", "--max", "2", "--set", "polling_interval=200ms")
        eventually(lambda: [one.state for one in mq.topology(queue).replicas] == ["serving"])
        refused = ask("scale", f"{queue}#1")
        assert f"`tidegate scale {queue}`" in refused.stderr.decode()
        # So slow that nothing has gone before the interruption.
        before = asked("--set", "polling_interval=60s", "--set", "stale=120s")["scaling"]
        with started(["scale", queue, "--off"], up.url) as ending:
            assert ending.stderr is not None
            assert b"waiting until" in ending.stderr.readline()
            scaling = mq.topology(queue).scaling
            assert scaling is not None
            assert scaling.replicas_wanted == 0
            ending.send_signal(signal.SIGINT)
            told = ending.stderr.read()
            assert ending.wait(LIMIT_S) != 0
        assert b"goes on scaling as it did" in told
        assert asked()["scaling"] == before


# Terminals


def read_terminal(leader: int, answer: Callable[[bytes], None] = lambda _: None) -> bytes:
    """All that is shown until the last process has closed it: then reading is an error."""
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(leader, 65536):
            shown += chunk
            answer(shown)
    return shown


def test_a_terminal_gets_no_control_characters_of_a_payload(up: Up, queue: str) -> None:
    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        mq.put(queue, b"\x1b[2Jgone?")
    leader, follower = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "tidegate", "get", queue],
        stdout=follower,
        env=clean_environment() | {"TIDEGATE_URL": up.url, "TERM": "xterm"},
        check=True,
    )
    os.close(follower)
    shown = read_terminal(leader)
    os.close(leader)
    assert b"\x1b[2J" not in shown
    assert rb"\x1b[2Jgone?" in shown


def test_on_a_terminal_nothing_in_brackets_is_lost() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "watch", "--help"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=clean_environment() | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"},
    )
    os.close(follower)
    said = read_terminal(leader).decode()
    os.close(leader)
    assert process.wait() == 0
    assert "[default: 5s]" in said
    assert "tidegate[spark]" in said


def test_the_first_user_is_made_at_a_terminal_before_anything_runs(folder: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        command = [sys.executable, "-m", "tidegate", "user", "add", "zoe", "--data", "data"]
        os.execve(sys.executable, command, clean_environment())
    asked = 0

    def answer(shown: bytes) -> None:
        nonlocal asked
        if shown.count(b": ") > asked:
            asked += 1
            os.write(terminal, PASSWORD.encode() + b"\n")

    told = read_terminal(terminal, answer)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, told
    assert b"user zoe is made" in told
    assert PASSWORD.encode() not in told

    started = tidegate(
        *("up", "--port", "0", "--data", str(folder / "data")),
        environment={"TIDEGATE_NODE__HOST": "0.0.0.0"},
    )
    assert started.returncode == 2
    assert b"needs TLS: set tls.certificate and tls.key" in started.stderr
    assert b"tidegate user add" not in started.stderr


# What is not installed


def test_a_missing_part_of_the_lab_is_said_in_a_sentence() -> None:
    without = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv = ['tidegate', 'lab', 'run', "
        "'telesto', '--quick']; from tidegate.cli import main; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, check=False, env=clean_environment()
    )
    assert finished.returncode == 1
    assert finished.stderr.decode().startswith("tidegate: this needs the package matplotlib")
    assert "run `make setup`" in finished.stderr.decode()


@pytest.mark.parametrize(
    ("extras", "imports"),
    [
        (
            ("litestar", "uvicorn", "pyspark"),
            ("import tidegate.cli.status", "import tidegate.cli.status"),
        ),
        (
            ("aio_pika", "matplotlib", "nats", "numpy", "pika", "psutil", "redis"),
            (
                "import tidegate.demo.runner",
                "import tidegate.demo.evidence",
                "import tidegate.demo.customers",
                "import tidegate.demo.workshop",
            ),
        ),
    ],
    ids=["top", "demo"],
)
def test_a_command_needs_nothing_of_other_extras(
    extras: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); "
    finished = subprocess.run(
        [sys.executable, "-c", blocked + "; ".join(imports)],
        capture_output=True,
        cwd=tempfile.gettempdir(),
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
