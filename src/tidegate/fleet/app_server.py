"""`python -m tidegate.fleet.app_server shop:app`: an ASGI application under uvicorn.

    place taken → application imported → its start-up → it listens, and whoever started us is told

The place is bound first and listens last: nobody connects to what does not answer yet, and a port
that is taken is known before a long import. Not a command of `tidegate`: an instance that an
agreement waits for does not load a command line.
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
from tidegate.fleet.parent import end_with_parent
from tidegate.fleet.ready_pipe import ReadyPipe
from tidegate.fleet.user_module import user_module

if TYPE_CHECKING:
    from types import FrameType

# Doors keep connections for less: the one who hangs up is never the one who cannot be asked again.
KEEP_ALIVE_S = 120
# What an application may take beyond its drain before it is ended, whatever it does.
_GOODBYE_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Until SIGTERM; how it ended."""
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
            app = application(options.target)
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


def application(target: str) -> Any:
    """The ASGI application that `module:attribute` names."""
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
    """What uvicorn has said of why an application does not start."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        # Of a traceback the last line; the very last record only says that it did not start.
        if lines and not lines[-1].startswith("Application startup failed"):
            self.lines.append(lines[-1].strip())


def _exit_at_last(ends: SimpleQueue[float]) -> None:
    """End the process so long after it was told to end, whatever its application does."""
    time.sleep(ends.get())
    os._exit(1)


def _serve(target: str, app: Any, place: socket.socket, drain_s: float, ready: ReadyPipe) -> None:
    try:
        import uvicorn
    except ImportError:
        raise Unavailable("uvicorn is missing here: pip install 'tidegate[http]'") from None

    # Before any signal: a handler may interrupt the very locks that starting a thread takes, and
    # this kind of queue is the one that it may use.
    ends: SimpleQueue[float] = SimpleQueue()
    threading.Thread(target=_exit_at_last, args=(ends,), name="last-exit", daemon=True).start()

    class Server(uvicorn.Server):
        """One that tells when it listens, and that no application keeps from ending."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            port = place.getsockname()[1]
            ready.tell(str(port))

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            # A loop that hangs would never look at it; a thread does.
            ends.put(drain_s + _GOODBYE_S)

    errors = _LastError()
    told = logging.getLogger("uvicorn.error")
    if not told.hasHandlers():
        # The application has not said where logs go: to whoever started us.
        told.addHandler(logging.StreamHandler())
    told.addHandler(errors)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # Whole seconds.
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
