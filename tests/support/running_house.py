"""`tidegate up` with people in it, and its console in a process that tests stop, kill and start."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PASSWORD = "correct horse battery"
# Against hanging; these say nothing about speed.
READY_S_MAX = 100.0
COMMAND_S_MAX = 100.0
_ADDRESS = re.compile(rb"(?:tidegate|http)://127\.0\.0\.1:\d+")


def _environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    return ours | dict(more or {})


def _children(pid: int) -> Iterator[int]:
    """With theirs; who ends meanwhile has none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _children(child)


class Process:
    """A `tidegate` command that says where it is when it is ready."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "tidegate", *arguments]
        self._folder = folder
        self.log = folder / f"{arguments[0]}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                cwd=self._folder,
                start_new_session=True,
            )

    @functools.cached_property
    def address(self) -> str:
        """Where it is, as soon as it is there."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_S_MAX), f"not ready: {self.log.read_text()}"
        line = self.process.stdout.readline()
        found = _ADDRESS.search(line)
        assert found, f"{line!r}, {self.log.read_text()}"
        return found[0].decode()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """It first, which would start the others anew, and all that it has started."""
        self.signal(number)
        for child in list(_children(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(READY_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()


def run_in(folder: Path, *arguments: str) -> None:
    """A `tidegate` command, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        env=_environment(),
        cwd=folder,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


class House:
    """A node and its console."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.data = folder / "data"
        # Found by whatever runs in this folder.
        (folder / "tidegate.toml").write_text(settings)
        self.up = Process(folder, "up", "--data", str(self.data), "--port", "0", "--no-console")
        self.console = self._console("0")

    @property
    def url(self) -> str:
        """Of the node."""
        return self.up.address

    @property
    def page(self) -> str:
        """Of the console."""
        return self.console.address

    def _console(self, port: str) -> Process:
        options = ["--url", self.url, "--data", str(self.data), "--port", port]
        return Process(self.folder, "console", *options)

    def start_console_again(self) -> None:
        """Where it was."""
        self.console = self._console(self.page.rpartition(":")[2])

    def add_users(self, rights: Mapping[str, Sequence[str]]) -> None:
        """All at once: each is a process of its own."""
        adding = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidegate"),
                    *("user", "add", name, *granted, "--data", str(self.data)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                cwd=self.folder,
            )
            for name, granted in rights.items()
        ]
        for process in adding:
            process.communicate(PASSWORD.encode() + b"\n", timeout=READY_S_MAX)
            assert process.returncode == 0

    def run(self, *arguments: str) -> None:
        """A command, to its end."""
        run_in(self.folder, *arguments)

    def end(self) -> None:
        self.console.end()
        self.up.end()
