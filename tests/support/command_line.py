"""The command line as a user has it: real processes, and whoever they may have left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

READY_S_MAX = 30.0
ADDRESS = re.compile(r"tidegate://127\.0\.0\.1:\d+")

Finished = subprocess.CompletedProcess[bytes]


class CommandLine:
    """Runs commands, each in a process of its own that was forked from one that is ready."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            text=True,
        )

    def __call__(
        self,
        *arguments: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run one command to its end."""
        files = {name: self._folder / name for name in ("stdin", "stdout", "stderr")}
        files["stdin"].write_bytes(stdin)
        request = {
            "arguments": arguments,
            "environment": clean_environment() | dict(environment or {}),
            "folder": str(self._folder),
            **{name: str(path) for name, path in files.items()},
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Finished(arguments, code, files["stdout"].read_bytes(), files["stderr"].read_bytes())

    def end(self) -> None:
        self._server.communicate(timeout=10)


def tidegate(*arguments: str, environment: Mapping[str, str] | None = None) -> Finished:
    """Run one command to its end, from nothing."""
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=clean_environment() | dict(environment or {}),
        cwd=tempfile.gettempdir(),
        timeout=100,
        check=False,
    )


def clean_environment() -> dict[str, str]:
    """Ours, without settings that whoever runs the tests has for themselves."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("TIDEGATE_") and key not in ("FORCE_COLOR", "COLUMNS")
    }


class Up:
    """`tidegate up` in a folder of its own."""

    def __init__(
        self, folder: Path, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        begun = time.monotonic()
        self._log = (folder / "up.log").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate", "up"),
                *("--data", str(folder / "data"), "--port", "0", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Most have no use for it, and it takes a second of a core to start.
            env={
                **clean_environment(),
                "TIDEGATE_CONSOLE__ENABLED": "false",
                **(environment or {}),
            },
            cwd=folder,
            start_new_session=True,
        )
        nodes = int(options[options.index("--nodes") + 1]) if "--nodes" in options else 1
        self.addresses = [self._next_address() for _ in range(nodes)]
        self.ready_s = time.monotonic() - begun

    @property
    def url(self) -> str:
        return self.addresses[0]

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def _next_address(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_S_MAX), f"not ready: {self.log}"
        line = bytearray()
        # Byte by byte: a buffered read would hide the next line from select.
        while not line.endswith(b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, f"ended before it was ready: {self.log}"
            line += byte
        address = line.decode().strip()
        assert ADDRESS.fullmatch(address), address
        return address

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, bytes]:
        """Its exit code, and whatever else it wrote to stdout."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=READY_S_MAX)
        self._log.close()
        return self.process.returncode, rest

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()


@contextlib.contextmanager
def running_up() -> Iterator[Up]:
    """One that leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-cli-"))
    running = Up(folder)
    try:
        yield running
    finally:
        running.end()
        shutil.rmtree(folder, ignore_errors=True)


def processes_with(*marks: str) -> list[str]:
    """Command lines of processes that have one of these in command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(mark in command or mark in environment for mark in marks):
            found.append(f"{entry.name}: {command}")
    return found


def wait_until_gone(*marks: str, seconds_max: float = 10.0) -> list[str]:
    """Who is still there in the end; the kernel tells orphans on its own time."""
    deadline = time.monotonic() + seconds_max
    while (left := processes_with(*marks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def node_mark(up: Up) -> str:
    """What every node that this `up` started has in its environment."""
    return f"TIDEGATE_PARENT_PID={up.process.pid}\0"


def lines(finished: Finished) -> Sequence[str]:
    return finished.stdout.decode().splitlines()
