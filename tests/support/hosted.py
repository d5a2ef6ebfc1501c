"""`tidegate host` as a user runs it, and clients before its doors."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from free_ports import free_ports

READY_S_MAX = 90.0
# A client gives up then: on a busy computer, too, only who hangs takes so long.
ANSWER_S_MAX = 60.0
SHOP = Path(__file__).with_name("hosted_shop.py").read_text()
AGREEMENT = """\
name = "shop"
http = "shop"
window = "2s"
replicas = { min = 2, max = 3 }
[metrics.response_p95]
breach = "2s"
"""

# For a shop that gets more than it can answer: two requests at a time, 0.2 s each, so three
# instances answer 30 a second. So many clients, who pause between two requests, would have to wait
# for more than a second and a half.
AGREED_SECOND = AGREEMENT.replace('breach = "2s"', 'breach = "1s"')
NARROW = ("--spares", "1", "--concurrency", "2", "--env", "SHOP_SERVICE_S=0.2")
TOO_MANY, TOO_MANY_PAUSE_S = 60, 0.3


class Answer(NamedTuple):
    """What a client got; status 0: no answer at all."""

    status: int
    body: str
    cookie: str
    # Of the monotonic clock.
    asked_at: float
    took_s: float


def ask(
    address: str, path: str = "/", method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    where = urlsplit(address)
    asked_at = time.monotonic()
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWER_S_MAX)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        got = connection.getresponse()
        status, body = got.status, got.read().decode()
        cookie = (got.getheader("Set-Cookie") or "").partition(";")[0]
    except (OSError, http.client.HTTPException) as failure:
        status, body, cookie = 0, repr(failure), ""
    finally:
        connection.close()
    return Answer(status, body, cookie, asked_at, time.monotonic() - asked_at)


class Hosted:
    """One `tidegate host` in a folder of its own.

    With a store of its own, unless it is told of one that runs, and the code of that folder, unless
    it is to ship some; `settings` are those of a tidegate.toml.
    """

    def __init__(
        self,
        *options: str,
        doors: int = 1,
        agreement: str = AGREEMENT,
        settings: str = "",
        store: str | None = None,
        ship: Path | None = None,
        # Of a node of its own: any. The usual one is for tests of what a reader runs. None: that.
        node_port: int | None = 0,
    ) -> None:
        # Not pytest's: as root PostgreSQL has an account of its own, which must get there.
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-hosting-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.where = ["--data", str(self.data)] if store is None else ["--store", store]
        self.seen = self.folder / "seen"
        self.seen.touch()
        self.code = self.folder / "code"
        self.code.mkdir()
        # A wheel or a folder; what is deployed next may be another.
        self.ship = ship
        if ship is None:
            self.write_code(SHOP)
        self.agreement = self.folder / "shop.toml"
        self.agreement.write_text(agreement)
        self.options = ["--env", f"SHOP_SEEN={self.seen}", *options]
        if settings:
            (self.folder / "tidegate.toml").write_text(settings)
            self.options += ["--config", str(self.folder / "tidegate.toml")]
        self.told = (self.folder / "told").open("wb")
        has_own = store is None and node_port is not None
        own_node = ["--node-port", str(node_port)] if has_own else []
        first_port = str(free_ports(*range(1, doors)))
        self.process = subprocess.Popen(
            self.command("--port", first_port, "--doors", str(doors), *own_node),
            stdout=subprocess.PIPE,
            stderr=self.told,
            env=_clean_environment(),
            cwd=self.code,
            start_new_session=True,
        )
        try:
            self.addresses = [self._next_address() for _ in range(doors)]
        except BaseException:
            self.end()
            raise

    @property
    def address(self) -> str:
        return self.addresses[0]

    def write_code(self, code: str) -> None:
        (self.code / "hosted_shop.py").write_text(code)

    def command(self, *options: str) -> list[str]:
        return [
            *(sys.executable, "-m", "tidegate", "host", "hosted_shop:app"),
            *("--agreement", str(self.agreement), *self.where),
            *(() if self.ship is None else ("--ship", str(self.ship))),
            *(*self.options, *options),
        ]

    def deploying(self) -> subprocess.Popen[bytes]:
        """The same command on the same port: a deploy of what has changed."""
        return subprocess.Popen(
            self.command("--port", self.address.rpartition(":")[2]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_clean_environment(),
            cwd=self.code,
        )

    def again(self) -> subprocess.CompletedProcess[bytes]:
        """The same, to its end."""
        with self.deploying() as running:
            out, said = running.communicate(timeout=READY_S_MAX)
        return subprocess.CompletedProcess(running.args, running.returncode, out, said)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Another command about what it hosts."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments, *self.where],
            capture_output=True,
            env=_clean_environment(),
            cwd=self.code,
            timeout=READY_S_MAX,
            check=False,
        )

    def service(self) -> dict[str, Any]:
        """As `tidegate services --json` says."""
        finished = self.run("services", "--json")
        assert finished.returncode == 0, finished.stderr.decode()
        (found,) = json.loads(finished.stdout)
        assert isinstance(found, dict)
        return found

    def ready(self, *, spare: bool) -> set[int]:
        """Instances that answer, those in reserve or the others."""
        found: list[dict[str, Any]] = self.service()["instances"]
        return {
            one["instance_id"]
            for one in found
            if one["state"] == "ready" and (one["weight"] == 0.0) == spare
        }

    def door_pids(self) -> dict[int, int]:
        """Of the doors that it has started, by port."""
        found = {}
        for pid, words in _children_of(self.process.pid).items():
            if "door" in words:
                found[int(words[words.index("--port") + 1])] = pid
        return found

    def node_pid(self) -> int:
        """Of its node, which leads."""
        children = _children_of(self.process.pid).items()
        (found,) = [pid for pid, words in children if "node" in words]
        return found

    def _next_address(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_S_MAX), self.story()
        line = bytearray()
        # Byte by byte: a buffered read would hide the next line from select.
        while not line.endswith(b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, self.story()
            line += byte
        return line.decode().strip()

    def story(self) -> str:
        """What it has said, and all its processes."""
        log = self.data / "host.log"
        logged = log.read_text()[-4000:] if log.exists() else ""
        return f"{(self.folder / 'told').read_text()}\n{logged}"

    def left_behind(self) -> list[str]:
        """Processes that know its folder."""
        mark = str(self.folder).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if mark in command or mark in (entry / "environ").read_bytes():
                    found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def end(self) -> int:
        """Ctrl-C; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=READY_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.told.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.process.returncode


@dataclass
class Load:
    """Clients that ask all the time, and what they got."""

    address: str
    clients: int = 4
    method: str = "GET"
    pause_s: float = 0.02
    answers: list[Answer] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number,)) for number in range(self.clients)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        count = 0
        while not self._over.wait(self.pause_s):
            count += 1
            self.answers.append(ask(self.address, f"/{number}-{count}", self.method))

    @property
    def failed(self) -> list[Answer]:
        return [one for one in self.answers if one.status != http.client.OK]


def _clean_environment() -> dict[str, str]:
    return {key: text for key, text in os.environ.items() if not key.startswith("TIDEGATE_")}


def _children_of(parent: int) -> dict[int, Sequence[str]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = [word.decode() for word in words]
        except OSError:
            continue
    return found
