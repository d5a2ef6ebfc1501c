"""The restart of a command whenever a source file changes, for development.

This process watches the files, and a child process runs the command. A change sends SIGTERM to the
child, which finishes its work with the old code; then a new child starts. A child that ends by
itself is restarted at the next change, which probably mends it. The watch compares modification
times twice a second, which takes a millisecond for a thousand files.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tidegate.cli.source_files import python_files
from tidegate.fleet.parent import for_child

log = logging.getLogger(__name__)

_LOOK_S = 0.5
# The time a child needs to stop in addition to its drain, for hooks and disconnecting.
_GOODBYE_S = 10.0


class Sources:
    """The Python files below a folder, with their modification times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Return the files that were added, removed or changed since the previous call."""
        before, self._seen = self._seen, self._look()
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _look(self) -> dict[str, int]:
        seen: dict[str, int] = {}
        for path in python_files(self._folder):
            try:
                seen[str(path)] = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # deleted meanwhile
        return seen


def run_again_on_change(folder: Path, drain_s: float) -> int:
    """Run this command without `--reload`, again after each change; return the last exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    child = _Child(arguments, drain_s)
    sources = Sources(folder)
    asked: list[int] = []

    def stop(number: int, _: object) -> None:
        if asked:
            child.hurry()
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info("watching", extra={"folder": str(folder)})
    child.start()
    try:
        while not asked:
            time.sleep(_LOOK_S)
            if changed := sources.changed():
                log.info("changed: starting again", extra={"files": ", ".join(changed[:5])})
                child.stop()
                if not asked:
                    child.start()
    finally:
        code = child.stop()
    return code


class _Child:
    """The command as a child process."""

    def __init__(self, arguments: list[str], drain_s: float) -> None:
        self._command = [sys.executable, "-m", "tidegate", *arguments]
        self._patience_s = drain_s + _GOODBYE_S
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, **for_child()},
            # Only the parent receives Ctrl-C. A second signal would make the child cut its work
            # short.
            process_group=0,
        )

    def hurry(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> int:
        """Stop the child, kill it after its drain, and return its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            log.error("it did not end and is killed")
            self._process.kill()
            return self._process.wait()
