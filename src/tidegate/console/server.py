"""The console's HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.console.doorkeeper import Doorkeeper
from tidegate.core.errors import Unavailable

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 500
# Seconds for a client to send all headers of a request, after connecting or after the last
# response.
REQUEST_S_MAX = 10.0
_START_S = 20.0
_STOP_S = 2.0


@dataclass(frozen=True)
class ServerTls:
    """The certificate and key, as PEM files."""

    certificate: Path
    key: Path


class _Protocol(H11Protocol):
    """A protocol that closes connections without a request, to free their places."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(REQUEST_S_MAX, self._hang_up_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waiting.cancel()
        self._waiting = self.loop.call_later(REQUEST_S_MAX, self._hang_up_if_silent)
        super().on_response_complete()

    def _hang_up_if_silent(self) -> None:
        # A response may take any time: event streams never end.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller, who decides when it stops."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except (OSError, OverflowError) as failure:
        found.close()
        reason = getattr(failure, "strerror", None) or failure
        raise Unavailable(
            f"the console cannot listen on {host}:{port} ({reason}): choose another --port"
        ) from None
    found.setblocking(False)
    return found


@contextlib.asynccontextmanager
async def serving(
    application: Doorkeeper, listener: socket.socket, tls: ServerTls | None = None
) -> AsyncIterator[None]:
    """Serve the application while the context lasts."""
    config = uvicorn.Config(
        application,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Believe no forwarded client addresses: no proxy is expected.
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=int(_STOP_S),
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
    )
    # The caller logs the start itself.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _Server(config)
    running = asyncio.create_task(server.serve([listener]))
    begun = asyncio.create_task(server.begun.wait())
    try:
        await asyncio.wait([running, begun], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if not server.started:
            server.should_exit = True
            await running
            raise Unavailable("the console did not start: its log says why")
        yield
    finally:
        begun.cancel()
        application.stopping.set()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await running
