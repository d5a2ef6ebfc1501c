"""`tidegate demo` as people see it: in a pipe, on a terminal, and interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pytest
from command_line import clean_environment, wait_until_gone

pytestmark = pytest.mark.slow


@pytest.fixture
def temporary(folder: Path) -> dict[str, str]:
    """An environment in which temporary folders are made below ours."""
    return clean_environment() | {"TMPDIR": str(folder)}


def demo(*options: str) -> list[str]:
    return [sys.executable, "-m", "tidegate", "demo", *options]


def test_in_a_pipe_it_tells_a_line_a_second_and_counts(
    folder: Path, temporary: dict[str, str]
) -> None:
    finished = subprocess.run(
        demo("--seconds", "4", "--no-learn"),
        capture_output=True,
        text=True,
        env=temporary,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stderr == ""
    assert finished.stdout.count(" out ") >= 3
    assert "a burst of clicks begins" in finished.stdout
    assert "Every confirmed message was handled" in finished.stdout
    assert "\x1b" not in finished.stdout
    assert list(folder.iterdir()) == []
    assert wait_until_gone(str(folder)) == []


def test_its_json_is_all_of_stdout_and_nothing_is_lost(temporary: dict[str, str]) -> None:
    finished = subprocess.run(
        demo("--seconds", "3", "--nodes", "2", "--no-learn", "--json"),
        capture_output=True,
        env=temporary,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout)
    total = summary["total"]
    assert total["lost"] == 0
    assert total["put"] == total["confirmed"] <= total["handled"]
    assert set(summary["by_queue"]) == {"orders", "emails", "clicks"}
    assert summary["peak_in_per_s"] > 0


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 45)])
def test_on_a_terminal_it_draws_what_fits(
    temporary: dict[str, str], columns: int, rows: int
) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        demo("--seconds", "3", "--no-learn"),
        stdout=follower,
        stderr=subprocess.PIPE,
        env=temporary | {"TERM": "xterm-256color"},
    )
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        pass  # that is how a terminal says that the other side has closed
    _, complaints = process.communicate(timeout=30)
    os.close(leader)

    text = shown.decode()
    assert (process.returncode, complaints) == (0, b"")
    for expected in ("Tidegate demo", "orders", "commits/s", "clicks-lone", "counted one by one"):
        assert expected in text, expected


@pytest.mark.parametrize(
    ("number", "in_background"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_interrupted_it_leaves_nothing(
    folder: Path, temporary: dict[str, str], number: int, in_background: bool
) -> None:
    def as_shells_do() -> None:
        if in_background:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = subprocess.Popen(
        demo(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=temporary,
        preexec_fn=as_shells_do,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun

    process.send_signal(number)
    _, complaints = process.communicate(timeout=30)

    assert (process.returncode, complaints) == (130, b"")
    assert list(folder.iterdir()) == []
    assert wait_until_gone(str(folder)) == []


def test_it_needs_nothing_of_the_lab() -> None:
    extras = ("aio_pika", "matplotlib", "nats", "numpy", "pika", "psutil", "redis")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); "
    program = blocked + "import tidegate.cli.demo.view, tidegate.cli.demo.summary"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        cwd=tempfile.gettempdir(),
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.spark
def test_it_ends_with_what_spark_learned_and_a_page(
    folder: Path, temporary: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "pages" / "demo.html"

    finished = subprocess.run(
        demo("--seconds", "12", "--report", str(page)),
        capture_output=True,
        text=True,
        env=temporary,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.splitlines()[-1] == f"The report: {page}"
    html = page.read_text()
    assert all(f">{queue}<" in html for queue in ("orders", "emails", "clicks"))
    assert list(folder.iterdir()) == []
    assert wait_until_gone(str(folder)) == []
