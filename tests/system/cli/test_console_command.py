"""`tidegate console`, and that of `tidegate up`: where it is, who restarts it, who ends it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, Up, processes_with
from waiting import LIMIT_S, eventually

from tidegate import __version__

_ADDRESS = re.compile(r"^console: (http://127\.0\.0\.1:\d+)$", re.MULTILINE)
ENABLED = {"TIDEGATE_CONSOLE__ENABLED": "true"}


@pytest.fixture(scope="module")
def looked_at() -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    running = Up(folder, environment=ENABLED)
    yield running
    running.end()
    shutil.rmtree(folder, ignore_errors=True)


def _addresses(up: Up, count: int = 1) -> list[str]:
    """What `up` has said of its console, when it has said it so often."""
    eventually(lambda: len(_ADDRESS.findall(up.log)) >= count)
    return _ADDRESS.findall(up.log)


def _asked(address: str, path: str) -> object:
    with urllib.request.urlopen(address + path, timeout=LIMIT_S) as answer:
        return json.load(answer)


def _console_pids(up: Up) -> list[int]:
    mark = f"TIDEGATE_KEEPER={up.process.pid}:"
    found = [one for one in processes_with(mark) if "tidegate console" in one]
    return [int(one.partition(":")[0]) for one in found]


def test_up_says_where_its_console_is_and_starts_it_again_where_it_was(looked_at: Up) -> None:
    (address,) = _addresses(looked_at)
    overview = _asked(address, "/api/overview")
    assert isinstance(overview, dict)
    assert overview["nodes"] == 1

    (pid,) = _console_pids(looked_at)
    os.kill(pid, signal.SIGKILL)

    first, again = _addresses(looked_at, 2)
    assert first == again
    assert _asked(again, "/api/healthz") == {"status": "ok", "version": __version__}


def test_a_console_ends_with_the_up_that_was_killed(store_folder: Path) -> None:
    running = Up(store_folder, environment=ENABLED)
    try:
        _addresses(running)
        assert _console_pids(running)
        running.process.kill()
        running.process.wait()
        eventually(lambda: not _console_pids(running))
    finally:
        running.end()


def test_a_console_that_could_be_reached_from_outside_needs_tls_and_users(
    looked_at: Up, command_line: CommandLine
) -> None:
    refused = command_line("console", "--host", "0.0.0.0", "--port", "0", "--url", looked_at.url)

    assert refused.returncode == 2
    assert b"needs TLS" in refused.stderr
    assert b"users" in refused.stderr
    assert refused.stderr.count(b"\n") == 1


def test_a_port_that_is_taken_and_a_user_in_the_url_are_refused_in_a_sentence(
    looked_at: Up, command_line: CommandLine
) -> None:
    (address, *_) = _addresses(looked_at)
    port = address.rpartition(":")[2]
    taken = command_line("console", "--port", port, "--url", looked_at.url)
    assert taken.returncode == 1
    assert b"choose another --port" in taken.stderr
    named = command_line("console", "--url", looked_at.url.replace("://", "://ann@"))
    assert named.returncode == 2
    assert b"under their own names" in named.stderr
