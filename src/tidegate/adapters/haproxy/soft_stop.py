"""The graceful stop of an HAProxy process.

HAProxy accepts no new connections, closes idle ones and answers its outstanding requests. After the
stop signal it accepts no connection to its runtime socket either. So the door opens one before, and
polls the number of clients on it.
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
    """Stop HAProxy gracefully; return the number of clients left after `timeout_s`.

    The caller kills a process that is still alive.
    """
    left = 0
    writer: asyncio.StreamWriter | None = None
    try:
        # Count the clients even if `timeout_s` is 0: the caller reports how many are cut off.
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
            # HAProxy waits for the end of this connection too.
            writer.close()
            await process.wait()
    except (OSError, asyncio.IncompleteReadError):
        # The process has exited. A TimeoutError is an OSError too; it leaves `left` at the last
        # count.
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
