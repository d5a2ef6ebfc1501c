"""The command line: in this process as a rule, as processes where the process is the point."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from waiting import LIMIT_S, eventually

READY_S_MAX = LIMIT_S
ADDRESS = re.compile(r"tidegate://127\.0\.0\.1:\d+")
# `set_up_logs` changes their levels.
_LOGGERS = (None, "asyncio", "aio_pika", "aiormq")

Finished = subprocess.CompletedProcess[bytes]


class CommandLine:
    """Runs commands in this process: each with its own files, environment, folder and exit code.

    Everything that a command changes for its process is put back when it ends. What a command's
    own child processes print is not seen here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        *arguments: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Finished:
        """Run one command to its end."""
        variables = clean_environment() | dict(environment or {})

        def run() -> Finished:
            with tempfile.TemporaryDirectory(prefix="tidegate-cli-") as place:
                files = {name: Path(place) / name for name in ("stdin", "stdout", "stderr")}
                files["stdin"].write_bytes(stdin)
                with _as_it_was(), _opened(files):
                    sys.argv = ["tidegate", *arguments]
                    _set_environment(variables)
                    os.chdir(folder or self._folder)
                    code = _exit_code()
                said = [files[name].read_bytes() for name in ("stdout", "stderr")]
            return Finished(arguments, code, *said)

        return _without_loop(run)


def _exit_code() -> int:
    from tidegate.cli import _imported

    try:
        _imported()()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _without_loop(run: Callable[[], Finished]) -> Finished:
    """Run it in a thread where a loop runs here: commands have loops of their own."""
    if not _has_loop():
        return run()
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(run).result()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _opened(files: Mapping[str, Path]) -> Iterator[None]:
    """Standard input, output and error, in files."""
    before = sys.stdin, sys.stdout, sys.stderr
    with (
        files["stdin"].open() as sys.stdin,
        files["stdout"].open("w") as sys.stdout,
        files["stderr"].open("w") as sys.stderr,
    ):
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what commands change for their process."""
    argv, path, folder = sys.argv, list(sys.path), Path.cwd()
    modules, environment = set(sys.modules), dict(os.environ)
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    root = logging.getLogger()
    handlers, levels = list(root.handlers), [logging.getLogger(name).level for name in _LOGGERS]
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM)
    signals: list[Any] = [signal.getsignal(number) for number in numbers]
    # Users' modules may be younger than the last look into their folder.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if is_main:
            for number, handler in zip(numbers, signals, strict=True):
                signal.signal(number, handler)
        root.handlers[:] = handlers
        for name, level in zip(_LOGGERS, levels, strict=True):
            logging.getLogger(name).setLevel(level)
        gc.set_threshold(*threshold)
        if gc.get_freeze_count() > frozen:
            gc.unfreeze()
        here = str(Path.cwd())
        os.chdir(folder)
        _set_environment(environment)
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(here + os.sep):
                del sys.modules[name]


def _set_environment(wanted: Mapping[str, str]) -> None:
    """Change what differs and nothing else: a node beside us may read the environment just now."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


class Script:
    """Commands against one node and its store, by the environment as scripts do."""

    def __init__(self, command_line: CommandLine, url: str, store_url: str) -> None:
        self._run = command_line
        self._environment = {"TIDEGATE_URL": url, "TIDEGATE_STORE__URL": store_url}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Finished:
        return self._run(*arguments, stdin=stdin, environment=self._environment)

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        finished = self(*arguments, "--json", stdin=stdin)
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)


def tidegate(*arguments: str, environment: Mapping[str, str] | None = None) -> Finished:
    """Run one command to its end, in a process of its own."""
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
        # Of this one: others may have run in the same folder.
        descriptor, name = tempfile.mkstemp(prefix="up-", suffix=".log", dir=folder)
        self._log_path, self._log = Path(name), os.fdopen(descriptor, "wb")
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

    @property
    def url(self) -> str:
        return self.addresses[0]

    @property
    def log(self) -> str:
        return self._log_path.read_text()

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
    # Who waits for what is recorded does not wait long.
    running = Up(folder, environment={"TIDEGATE_TELEMETRY__FLUSH": "500ms"})
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


def wait_until_gone(*marks: str) -> None:
    """Wait until no process has one of these: the kernel tells orphans in its own time."""
    try:
        eventually(lambda: not processes_with(*marks))
    except AssertionError:
        raise AssertionError(f"still there: {processes_with(*marks)}") from None


def node_mark(up: Up) -> str:
    """What every node that this `up` started has in its environment."""
    return f"TIDEGATE_PARENT_PID={up.process.pid}\0"


def lines(finished: Finished) -> Sequence[str]:
    return finished.stdout.decode().splitlines()
