"""`tidegate user`: people come and go, and no password is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from served_node import ServedNode, served_node
from waiting import eventually

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def served(embedded_url: str) -> Iterator[ServedNode]:
    """A node of its own: the first user ends the time in which nobody has to log in."""
    with served_node(embedded_url) as running:
        yield running


def user(
    command_line: CommandLine, served: ServedNode, *arguments: str, stdin: str = ""
) -> tuple[int, str, str]:
    store = {"TIDEGATE_STORE__URL": served.store_url}
    done = command_line("user", *arguments, stdin=stdin.encode(), environment=store)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_life_of_a_user(command_line: CommandLine, served: ServedNode) -> None:
    def asks(*arguments: str, password: str = PASSWORD) -> tuple[int, str]:
        login = {"TIDEGATE_URL": served.url, "TIDEGATE_USER": "ann", "TIDEGATE_PASSWORD": password}
        done = command_line(*arguments, environment=login)
        return done.returncode, done.stderr.decode()

    # Given: nobody is there, and nobody has to log in.
    assert command_line("create", "orders", "--url", served.url).returncode == 0

    made = user(command_line, served, "add", "ann", "--read", "orders", stdin=PASSWORD + "\n")
    assert made == (0, "user ann is made\n", "")
    code, listed, _ = user(command_line, served, "list", "--json")
    assert code == 0
    assert json.loads(listed) == [
        {"user": "ann", "read": ["orders"], "write": [], "configure": [], "admin": []}
    ]

    # Now everybody has to, as soon as the node has noticed, and may do what they were granted.
    wait_until_login_is_wanted(command_line, served)
    assert asks("queues") == (0, "")
    code, complaint = asks("put", "orders", "hello")
    assert code == 1
    assert "user 'ann' may not write queue 'orders'" in complaint

    assert user(command_line, served, "grant", "ann", "--write", "orders")[0] == 0
    assert asks("put", "orders", "hello") == (0, "")
    assert user(command_line, served, "grant", "ann", "--only", "--read", "orders")[0] == 0
    assert asks("put", "orders", "hello")[0] == 1
    assert asks("get", "orders") == (0, "")

    assert user(command_line, served, "passwd", "ann", stdin="another password\n")[0] == 0
    assert "user or password is wrong" in asks("queues")[1]
    assert asks("queues", password="another password") == (0, "")

    assert user(command_line, served, "remove", "ann") == (0, "user ann is removed\n", "")
    assert asks("queues", password="another password")[0] == 1
    # And nobody is there again.
    eventually(lambda: command_line("queues", "--url", served.url).returncode == 0)


def wait_until_login_is_wanted(command_line: CommandLine, served: ServedNode) -> None:
    """Wait until the node has heard of the first user; until then it may cut connections, too."""
    wanted = b"this node wants a login"
    eventually(lambda: wanted in command_line("queues", "--url", served.url).stderr)


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
def test_invalid_user_command_gives_a_one_line_error(
    arguments: list[str], complaint: str, command_line: CommandLine, served: ServedNode
) -> None:
    code, _, told = user(command_line, served, *arguments, stdin="short\n")
    assert code == (1 if "there is no user" in complaint else 2)
    assert complaint in told
    assert told.count("\n") == 1
    assert "short" not in told


def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    command_line: CommandLine, served: ServedNode
) -> None:
    there = served.url.removeprefix("tidegate://")
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


def test_a_password_comes_from_a_file(
    command_line: CommandLine, served: ServedNode, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")

    made = user(command_line, served, "add", "root", "--admin", "--password-file", str(password))

    assert made == (0, "user root is made\n", "")
    wait_until_login_is_wanted(command_line, served)
    login = {"TIDEGATE_USER": "root", "TIDEGATE_PASSWORD": PASSWORD}
    done = command_line("queues", "--url", served.url, environment=login)
    assert (done.returncode, done.stderr) == (0, b"")
    assert user(command_line, served, "remove", "root")[0] == 0
