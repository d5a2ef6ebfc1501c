"""One command of the user with limits for its time and its output.

It runs without a shell in its own process group; at the deadline the whole group is killed. We wait
for the command and not for the end of its output: background processes that it leaves may keep the
pipe open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence

from tidegate.core.errors import Unavailable
from tidegate.core.harmless import harmless
from tidegate.core.quantities import format_duration
from tidegate.core.secrecy import without_secrets
from tidegate.fleet.child_process import exit_code_of

OUTPUT_BYTES_MAX = 1 << 20
# Characters of its output in an error.
_TOLD_MAX = 800
# Seconds to read the rest of the pipe after the end; later output is of other processes.
_REST_S = 0.2
_READ_BYTES = 1 << 16


async def run_command(
    name: str,
    words: Sequence[str],
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command and return its standard output.

    Raises `Unavailable` if it cannot be started, fails, prints too much, or exceeds `deadline_s`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except (OSError, ValueError) as failure:
        raise Unavailable(
            f"the {name} command cannot be run: {failure} ({shlex.join(words)})"
        ) from None
    assert process.stdout is not None
    assert process.stderr is not None
    output, complaints = _Reading(process.stdout), _Reading(process.stderr)
    try:
        async with asyncio.timeout(deadline_s):
            code = await exit_code_of(process)
        await asyncio.wait((output.task, complaints.task), timeout=_REST_S)
    except TimeoutError:
        raise Unavailable(
            f"the {name} command did not end within {format_duration(deadline_s)} and was killed"
            f"{_said(complaints, output)}"
        ) from None
    finally:
        if process.returncode is None:
            # The group is its own, and its pid is not reused until we have waited for it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await exit_code_of(process)
        output.task.cancel()
        complaints.task.cancel()
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise Unavailable(f"the {name} command {how}{_said(complaints, output)}")
    if output.is_cut:
        raise Unavailable(f"the {name} command printed more than {OUTPUT_BYTES_MAX} bytes")
    return output.text


class _Reading:
    """Keeps a limited part of a stream and discards the rest, so that the writer never blocks."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._kept = bytearray()
        self._stream = stream
        self.is_cut = False
        self.task = asyncio.create_task(self._read())

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    async def _read(self) -> None:
        while chunk := await self._stream.read(_READ_BYTES):
            room = OUTPUT_BYTES_MAX - len(self._kept)
            self._kept += chunk[:room]
            self.is_cut = self.is_cut or len(chunk) > room


def _said(*readings: _Reading) -> str:
    """Return the end of the output as one line for an error."""
    text = " | ".join(
        line.strip() for reading in readings for line in reading.text.splitlines() if line.strip()
    )
    if not text:
        return "; it said nothing"
    if len(text) > _TOLD_MAX:
        text = "…" + text[-_TOLD_MAX:]
    return f"; it said: {harmless(without_secrets(text))}"
