"""`tidegate user`: people come and go, and no password is seen."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, Up, clean_environment, running_up, tidegate

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """A node of its own: the first user ends the time in which nobody has to log in."""
    with running_up() as running:
        yield running


def user(
    command_line: CommandLine, up: Up, *arguments: str, stdin: str = ""
) -> tuple[int, str, str]:
    done = command_line("user", *arguments, "--data", str(up.folder / "data"), stdin=stdin.encode())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_life_of_a_user(command_line: CommandLine, up: Up) -> None:
    def asks(*arguments: str, password: str = PASSWORD) -> tuple[int, str]:
        login = {"TIDEGATE_URL": up.url, "TIDEGATE_USER": "ann", "TIDEGATE_PASSWORD": password}
        done = command_line(*arguments, environment=login)
        return done.returncode, done.stderr.decode()

    # Given: nobody is there, and nobody has to log in.
    assert command_line("create", "orders", "--url", up.url).returncode == 0

    made = user(command_line, up, "add", "ann", "--read", "orders", stdin=PASSWORD + "\n")
    assert made == (0, "user ann is made\n", "")
    code, listed, _ = user(command_line, up, "list", "--json")
    assert code == 0
    assert json.loads(listed) == [
        {"user": "ann", "read": ["orders"], "write": [], "configure": [], "admin": []}
    ]

    # Now everybody has to, as soon as the node has noticed, and may do what they were granted.
    assert b"this node wants a login" in stranger_gets(1, command_line, up)
    assert asks("queues") == (0, "")
    code, complaint = asks("put", "orders", "hello")
    assert code == 1
    assert "user 'ann' may not write queue 'orders'" in complaint

    assert user(command_line, up, "grant", "ann", "--write", "orders")[0] == 0
    assert asks("put", "orders", "hello") == (0, "")
    assert user(command_line, up, "grant", "ann", "--only", "--read", "orders")[0] == 0
    assert asks("put", "orders", "hello")[0] == 1
    assert asks("get", "orders") == (0, "")

    assert user(command_line, up, "passwd", "ann", stdin="another password\n")[0] == 0
    assert "user or password is wrong" in asks("queues")[1]
    assert asks("queues", password="another password") == (0, "")

    assert user(command_line, up, "remove", "ann") == (0, "user ann is removed\n", "")
    assert asks("queues", password="another password")[0] == 1
    # And nobody is there again.
    assert stranger_gets(0, command_line, up) == b""


def stranger_gets(code: int, command_line: CommandLine, up: Up) -> bytes:
    """What somebody without login is told, once the node has seen that users changed."""
    deadline = time.monotonic() + 30
    while (done := command_line("queues", "--url", up.url)).returncode != code:
        assert time.monotonic() < deadline, done
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["add", "@node"], "a user's name has"),
        (["add", "eve", "--read", "a\nb"], "a pattern is"),
        (["add", "eve"], "a password has 8 to"),
        (["passwd", "nobody"], "a password has 8 to"),
        (["remove", "nobody"], "there is no user 'nobody'"),
        (["grant", "nobody", "--admin"], "there is no user 'nobody'"),
        (["add", "eve", "--password-file", "/nowhere"], "the password file /nowhere cannot be"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(
    arguments: list[str], complaint: str, command_line: CommandLine, up: Up
) -> None:
    code, _, told = user(command_line, up, *arguments, stdin="short\n")
    assert code == (1 if "there is no user" in complaint else 2)
    assert complaint in told
    assert told.count("\n") == 1
    assert "short" not in told


def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    command_line: CommandLine, up: Up
) -> None:
    there = up.url.removeprefix("tidegate://")
    done = command_line("queues", "--url", f"tidegate://ann:hunter2hunter2@{there}")
    assert done.returncode == 2
    assert b"TIDEGATE_PASSWORD" in done.stderr
    worker = command_line("worker", "shop:app", "--url", f"tidegate://ann:hunter2hunter2@{there}")
    assert worker.returncode == 2
    assert b"TIDEGATE_PASSWORD" in worker.stderr
    assert b"hunter2" not in worker.stderr + worker.stdout
    joined = command_line("node", "--join", "postgresql://me:hunter2hunter2@127.0.0.1:1/x")
    assert joined.returncode == 2
    assert b"TIDEGATE_STORE__URL" in joined.stderr
    assert b"hunter2" not in done.stderr + done.stdout + joined.stderr + joined.stdout


def test_who_sits_at_a_terminal_is_asked_and_nothing_is_echoed(up: Up) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(up.folder)
        command = [sys.executable, "-m", "tidegate", "user", "add", "zoe", "--data", "data"]
        os.execve(sys.executable, command, clean_environment())
    told = b""
    asked = 0
    # Reading fails when nobody is there any more: that is how a terminal says so.
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 1024):
            told += chunk
            if told.count(b": ") > asked:
                asked += 1
                os.write(terminal, PASSWORD.encode() + b"\n")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, told
    assert b"user zoe is made" in told
    assert PASSWORD.encode() not in told


def test_a_first_user_is_made_before_anything_runs(folder: Path) -> None:
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    data = ["--data", str(folder / "data")]
    made = tidegate("user", "add", "root", "--admin", "--password-file", str(password), *data)
    assert made.returncode == 0, made.stderr
    started = tidegate("up", "--port", "0", *data, environment={"TIDEGATE_NODE__HOST": "0.0.0.0"})
    assert started.returncode == 2
    assert b"needs TLS: set tls.certificate and tls.key" in started.stderr
    assert b"tidegate user add" not in started.stderr
