"""One uvicorn process of an ASGI application: started, asked whether it answers, drained, ended.

Strategy: that it listens is told through a pipe (`fleet/app_server.py`), that it is well is known
by asking it over HTTP, as whoever sends it requests would.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from tidegate.core.errors import Unavailable
from tidegate.core.health import HEALTH_ANSWER_S
from tidegate.core.quantities import format_duration
from tidegate.fleet.child_process import ChildProcess

# Of hosts that stand for all addresses.
_ASK_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOK_S = 0.01
_STATUS_LINE_BYTES_MAX = 1 << 10
_GOODBYE_S = 10.0


class AppProcess(ChildProcess):
    """An application that runs by itself."""

    def __init__(
        self,
        target: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        # Under which others reach it; None: where it listens.
        advertise: str | None = None,
        health_path: str = "/",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self.target = target
        self._host = host
        # Listening on all addresses is no address to be reached at.
        self._advertise = advertise or (socket.gethostname() if host in _ASK_AT else host)
        self._health_path = health_path
        self._drain_s = drain_s
        # Not from where it runs, but from where it is installed: what lies there comes later.
        command = [sys.executable, "-P", "-m", "tidegate.fleet.app_server", target]
        command += ["--host", host, "--port", str(port), "--drain-s", f"{drain_s:g}"]
        super().__init__(command, environment or {}, folder)

    @property
    def address(self) -> str | None:
        """host:port for others; None: it does not listen yet."""
        return f"{self._bracketed(self._advertise)}:{self.word}" if self.word else None

    @staticmethod
    def _bracketed(host: str) -> str:
        return f"[{host}]" if ":" in host else host

    async def trouble(self) -> str | None:
        """Ask it; None: it answers, and else why not."""
        if not self.word:
            return "it does not listen yet"
        try:
            async with asyncio.timeout(HEALTH_ANSWER_S):
                status = await self._status(int(self.word))
        except TimeoutError:
            within = format_duration(HEALTH_ANSWER_S)
            return f"no answer to GET {self._health_path} within {within}"
        except (OSError, ValueError, asyncio.LimitOverrunError) as failure:
            return f"GET {self._health_path} fails: {failure}"
        return None if status < 500 else f"GET {self._health_path} is answered {status}"

    async def _status(self, port: int) -> int:
        host = _ASK_AT.get(self._host, self._host)
        reader, writer = await asyncio.open_connection(host, port, limit=_STATUS_LINE_BYTES_MAX)
        try:
            request = (
                f"GET {self._health_path} HTTP/1.1\r\nHost: {self._bracketed(host)}:{port}\r\n"
                "User-Agent: tidegate-machine\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode())
            line = await reader.readline()
            if not line:
                raise ConnectionError("it hung up")
            return int(line.split()[1])
        except IndexError:
            raise ValueError("its answer is no HTTP") from None
        finally:
            writer.close()

    async def until_ready(self, patience_s: float = 30.0) -> str:
        """Its address, once it answers; Unavailable, in words, when it never does."""
        why: str | None = "it does not listen yet"
        try:
            async with asyncio.timeout(patience_s):
                while (why := await self.trouble()) is not None:
                    if self.exit_code is not None:
                        await self.wait()
                        raise Unavailable(f"{self.target} {self.how_it_ended}")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise Unavailable(self.late(patience_s, why)) from None
        assert self.address is not None
        return self.address

    def late(self, after_s: float, why: str | None) -> str:
        """That it takes so long, and where it seems to be."""
        after = format_duration(after_s)
        if self.word is None:
            return f"{self.target} still imports or starts up after {after}: it may hang there"
        return f"{self.target} is not ready after {after}: {why}"

    async def end(self) -> None:
        """Drain it, and wait; one that does not end is killed."""
        self.ask_to_end()
        try:
            async with asyncio.timeout(self._drain_s + _GOODBYE_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
