"""A check that an application can be hosted, before anything starts."""

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

# Some applications load models at import.
IMPORT_S_MAX = 60.0
_ANSWER_BYTES_MAX = 1 << 16


def check_application(
    target: str, folder: Path, environment: Mapping[str, str], *, code: Path | None = None
) -> None:
    """Raise `InvalidValue` if the target does not import, or is not an ASGI application.

    `code` is a wheel or a folder that comes before `folder` on the import path.
    """
    heard, told = os.pipe()
    # As for an instance, the folder comes after the standard library on the import path (-P).
    # Otherwise a file named like a standard module would replace that module in this check only.
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
            # Output of the application is not shown; its errors are.
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
        # Kill all processes of the probe's group, because an import may start processes.
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
    """Return the answer of the probe; None after IMPORT_S_MAX."""
    parts: list[bytes] = []
    deadline = time.monotonic() + IMPORT_S_MAX
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return None
        part = os.read(descriptor, _ANSWER_BYTES_MAX)
        parts.append(part)
        # A forked process may hold the pipe open, so the end of the line ends the answer.
        if not part or part.endswith(b"\n"):
            return b"".join(parts)
