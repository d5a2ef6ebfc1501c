"""One uvicorn process of an ASGI application: start, probe, drain, end.

The child announces its port through a pipe (`fleet/app_server.py`). Its health is checked over
HTTP, as a client would use it.
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

# Addresses to probe for hosts that mean all addresses.
_ASK_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOK_S = 0.01
_STATUS_LINE_BYTES_MAX = 1 << 10
_GOODBYE_S = 10.0


class AppProcess(ChildProcess):
    """The process of one application."""

    def __init__(
        self,
        target: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        # The host under which others reach it; None means where it listens.
        advertise: str | None = None,
        health_path: str = "/",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self.target = target
        self._host = host
        # A host that means all addresses is not an address to connect to.
        self._advertise = advertise or (socket.gethostname() if host in _ASK_AT else host)
        self._health_path = health_path
        self._drain_s = drain_s
        # Start with -P: modules in the working directory must not hide installed ones.
        command = [sys.executable, "-P", "-m", "tidegate.fleet.app_server", target]
        command += ["--host", host, "--port", str(port), "--drain-s", f"{drain_s:g}"]
        super().__init__(command, environment or {}, folder)

    @property
    def address(self) -> str | None:
        """Its host:port for other programs; None while it does not listen."""
        return f"{self._bracketed(self._advertise)}:{self.word}" if self.word else None

    @staticmethod
    def _bracketed(host: str) -> str:
        return f"[{host}]" if ":" in host else host

    async def trouble(self) -> str | None:
        """Probe it; return why it does not answer, or None if it does."""
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
        """Wait until it answers and return its address.

        Raises `Unavailable` with the reason if it ends or does not answer within `patience_s`
        seconds.
        """
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
        """Return a text that says how long it has taken and at which step it is."""
        after = format_duration(after_s)
        if self.word is None:
            return f"{self.target} still imports or starts up after {after}: it may hang there"
        return f"{self.target} is not ready after {after}: {why}"

    async def end(self) -> None:
        """Let it drain and wait for its end; kill it if that takes too long."""
        self.ask_to_end()
        try:
            async with asyncio.timeout(self._drain_s + _GOODBYE_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
