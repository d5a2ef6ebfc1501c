"""Child processes that exchange lines of JSON with their parent.

The parent writes a line, and the child answers with one line. If a child fails or does not answer
in time, the parent gets `ChildFailed` with the end of the child's standard error. The child ends
when the parent leaves the block. A child whose parent died reads the end of its input and ends too.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

KILL_WAIT_S = 5.0
STDERR_TAIL_BYTES = 3000

Answer = TypeVar("Answer")


class ChildFailed(RuntimeError):
    """A child process failed, or did not answer in time."""


class Child:
    """A process `python -m module arguments…` that answers lines of JSON; use it with `with`."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._module = module
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # Only the parent handles Ctrl-C; it then ends its children by their ids.
            start_new_session=True,
        )
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # The child ends by itself when its input ends.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(KILL_WAIT_S)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(KILL_WAIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._stderr.close()

    def say(self, what: object) -> None:
        """Write one line of JSON; raise `ChildFailed` if the child has ended."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(what) + b"\n")
            stdin.flush()
        except OSError:
            self._process.wait(KILL_WAIT_S)
            raise self._failure(f"ended with {self._process.returncode}") from None

    def hear(self, kind: type[Answer], timeout_s: float) -> Answer:
        """Return the child's next answer, decoded as `kind`.

        `ChildFailed` means that the child ended or did not answer within `timeout_s`.
        """
        return msgspec.json.decode(self._next_line(time.monotonic() + timeout_s), type=kind)

    def check(self) -> None:
        """Raise `ChildFailed` if the child has ended."""
        if self._process.poll() is not None:
            raise self._failure(f"ended with {self._process.returncode}")

    def has_answered(self, wait_s: float) -> bool:
        """Wait up to `wait_s` and return whether the child has answered or ended."""
        if b"\n" in self._received:
            return True
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout=wait_s))

    def _next_line(self, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(timeout=max(deadline - time.monotonic(), 0.0)):
                    raise self._failure("did not answer in time")
                chunk = os.read(stdout.fileno(), 1 << 20)
                if not chunk:
                    self._process.wait(KILL_WAIT_S)
                    raise self._failure(f"ended with {self._process.returncode}")
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, what: str) -> ChildFailed:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_TAIL_BYTES))
        complaint = self._stderr.read().decode(errors="replace")
        return ChildFailed(f"{self._module} {what}:\n{complaint}")


def answer(what: object) -> None:
    """Answer the parent; called in the child."""
    left = memoryview(msgspec.json.encode(what) + b"\n")
    # With PYTHONUNBUFFERED there is no buffer, and a write of more than a pipe holds may be
    # partial. The parent would wait for the rest of the line.
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()
