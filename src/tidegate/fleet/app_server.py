"""`python -m tidegate.fleet.app_server shop:app`: an ASGI application under uvicorn.

    port bound → application imported → its start-up → it listens, and announces its port

The port is bound first, so that a port in use is noticed before a long import. It listens last, so
that no client connects before the application can answer. This is not a `tidegate` command, because
an instance must start fast and needs no command line.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.runtime import user_module
from tidegate.fleet.process import ReadyPipe, end_with_parent

if TYPE_CHECKING:
    from types import FrameType

# Seconds. Doors keep idle connections for a shorter time, so that the door closes them and not the
# instance. A request that cannot be repeated is then never sent to a closing connection.
KEEP_ALIVE_S = 120
# Seconds that an application may need after its drain before it is ended by force.
_SERVER_EXIT_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="app_server")
    parser.add_argument("target")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--drain-s", type=float, default=30.0)
    options = parser.parse_args(arguments)
    try:
        end_with_parent()
        ready = ReadyPipe()
        with _bound(options.host, options.port) as place:
            app = load_application(options.target)
            _serve(options.target, app, place, options.drain_s, ready)
    except TidegateError as failure:
        sys.stderr.write(f"tidegate: {' '.join(str(failure).split())}\n")
        return 1
    return 0


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = socket.socket(family)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
    except OSError as failure:
        place.close()
        raise Unavailable(
            f"nobody can listen on {host}:{port}: {failure.strerror}; choose another port or host"
        ) from None
    return place


def load_application(target: str) -> Any:
    """Import the ASGI application named `module:attribute`; raise `InvalidValue` if unusable."""
    module_name, _, path = target.partition(":")
    module = user_module(module_name)
    where = f"{module_name} ({getattr(module, '__file__', None) or 'no file'})"
    try:
        app = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        raise InvalidValue(f"{where} has no {path!r}: name the ASGI application in it") from None
    if not callable(app):
        raise InvalidValue(
            f"{path!r} in {where} is of type {type(app).__name__}, no ASGI application"
        )
    return app


class _LastError(logging.Handler):
    """Keeps what uvicorn logs about an application that does not start."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        # Keep the last line of a traceback. uvicorn's own last record has no reason in it.
        if lines and not lines[-1].startswith("Application startup failed"):
            self.lines.append(lines[-1].strip())


def _exit_at_last(ends: SimpleQueue[float]) -> None:
    """End the process a given time after its SIGTERM, even if its application blocks."""
    time.sleep(ends.get())
    os._exit(1)


def _serve(target: str, app: Any, place: socket.socket, drain_s: float, ready: ReadyPipe) -> None:
    try:
        import uvicorn
    except ImportError:
        raise Unavailable("uvicorn is missing here: pip install 'tidegate[http]'") from None

    # Start the thread before any signal can come: a signal handler may interrupt the locks that
    # starting a thread takes. SimpleQueue is the queue that a signal handler may use.
    ends: SimpleQueue[float] = SimpleQueue()
    threading.Thread(target=_exit_at_last, args=(ends,), name="last-exit", daemon=True).start()

    class Server(uvicorn.Server):
        """A server that announces its port and always ends after SIGTERM."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            port = place.getsockname()[1]
            ready.report(str(port))

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            # A blocked event loop never sees the signal, so a thread ends the process.
            ends.put(drain_s + _SERVER_EXIT_S)

    errors = _LastError()
    told = logging.getLogger("uvicorn.error")
    if not told.hasHandlers():
        # The application has not configured logging: write to stderr, which the parent reads.
        told.addHandler(logging.StreamHandler())
    told.addHandler(errors)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # uvicorn takes whole seconds.
        timeout_graceful_shutdown=max(round(drain_s), 1),
    )
    server = Server(config)
    try:
        server.run([place])
    except SystemExit:
        why = errors.lines[-1] if errors.lines else "its start-up failed, and it did not say why"
        raise Unavailable(f"{target} does not start: {why}") from None


if __name__ == "__main__":
    sys.exit(main())
