"""Whether an application can be hosted, found out before anything starts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import InvalidValue
from tidegate.core.harmless import harmless
from tidegate.fleet.store_environment import without_stores

# Some applications load models.
IMPORT_S_MAX = 60.0
_ANSWER_BYTES_MAX = 1 << 16


def check_application(
    target: str, folder: Path, environment: Mapping[str, str], *, code: Path | None = None
) -> None:
    """InvalidValue if it does not import there, or is no ASGI application.

    `code` is a wheel, or a folder, that is looked into before the folder.
    """
    heard, told = os.pipe()
    # As an instance is started: what lies in the folder comes after what we import ourselves, or a
    # file that is called like a module of Python's would be that module, for us alone.
    command = [sys.executable, "-P", "-m", "tidegate.cli.application_probe", target, str(told)]
    if code is not None:
        command.append(str(code))
    try:
        probe = subprocess.Popen(
            command,
            env=without_stores(os.environ) | dict(environment),
            cwd=folder,
            pass_fds=(told,),
            stdin=subprocess.DEVNULL,
            # It may print what it likes; only what goes wrong is of interest.
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as failure:
        os.close(heard)
        raise InvalidValue(f"{target} cannot be tried in {folder}: {failure}") from None
    finally:
        os.close(told)
    try:
        answer = _heard(heard)
    finally:
        os.close(heard)
        # With all that it has started: importing is running somebody's code.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(probe.pid, signal.SIGKILL)
        code_at_end = probe.wait()
    if answer is None:
        raise InvalidValue(f"{target!r} is not imported after {IMPORT_S_MAX:g} s")
    if not answer:
        raise InvalidValue(
            f"importing {target!r} ended the process (exit code {code_at_end}) before it was done"
        )
    if wrong := msgspec.json.decode(answer)["wrong"]:
        raise InvalidValue(harmless(wrong))


def _heard(descriptor: int) -> bytes | None:
    """What the probe says; None: it takes too long."""
    parts: list[bytes] = []
    deadline = time.monotonic() + IMPORT_S_MAX
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return None
        part = os.read(descriptor, _ANSWER_BYTES_MAX)
        parts.append(part)
        # Whoever it has forked may hold the other end open: what it says ends with its line.
        if not part or part.endswith(b"\n"):
            return b"".join(parts)
