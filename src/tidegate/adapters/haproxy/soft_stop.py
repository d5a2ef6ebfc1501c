"""The end of a HAProxy that answers what it has: no new connections, idle ones closed.

Once it is told to go, HAProxy takes no new connection to its runtime socket either, so one is
opened before, and asked how many clients are left.
"""

from __future__ import annotations

import asyncio

from tidegate.adapters.haproxy.process import HaproxyProcess
from tidegate.adapters.haproxy.runtime_socket import number, rows_in

_LOOK_S = 0.05
_COUNT_S = 2.0
_PROMPT = b"\n> "
_ANSWER_BYTES_MAX = 64 << 20


async def soft_stop(
    process: HaproxyProcess, runtime_path: str, frontend: str, timeout_s: float
) -> int:
    """Until the last client has gone or time is up; how many were left then."""
    left = 0
    writer: asyncio.StreamWriter | None = None
    try:
        # Also without any time: whoever is cut off is to be counted.
        async with asyncio.timeout(_COUNT_S):
            reader, writer = await asyncio.open_unix_connection(
                runtime_path, limit=_ANSWER_BYTES_MAX
            )
            writer.write(b"prompt\n")
            await reader.readuntil(_PROMPT)
            left = await _clients(reader, writer, frontend)
        process.ask_to_end()
        async with asyncio.timeout(timeout_s):
            while left:
                await asyncio.sleep(_LOOK_S)
                left = await _clients(reader, writer, frontend)
            # It waits for us, too.
            writer.close()
            await process.wait()
    except (OSError, asyncio.IncompleteReadError):
        # It has gone already: a TimeoutError is an OSError, too, and leaves what was left.
        pass
    finally:
        if writer is not None:
            writer.close()
    return left if process.alive else 0


async def _clients(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frontend: str
) -> int:
    writer.write(b"show stat typed\n")
    answer = await reader.readuntil(_PROMPT)
    return number(rows_in(answer, (frontend,)).get("FRONTEND", {}), "scur")
