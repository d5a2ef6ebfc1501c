"""The console as an ASGI application: the API, the page, and the doorkeeper before both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from tidegate.console import page_routes
from tidegate.console.deeds import Deeds
from tidegate.console.description import openapi
from tidegate.console.doorkeeper import Doorkeeper
from tidegate.console.person import Connect
from tidegate.console.problems import Refused, on_bug, on_error, on_http, on_refused
from tidegate.console.reference import MODULES, handlers
from tidegate.console.sessions import Sessions
from tidegate.console.sight import HostingView
from tidegate.core.errors import TidegateError

BODY_BYTES_MAX = 1024 * 1024
# Connections of users that nobody is here as are ended so often.
_TIDY_S = 30.0


@dataclass(frozen=True)
class ConsoleOptions:
    """What a console is of."""

    connect: Connect
    # What a Host header may say.
    hosts: frozenset[str]
    port: int
    tls: bool = False
    # Also where the broker would let anybody in.
    needs_login: bool = False
    # Where services and standings are rows; None: the broker alone is asked.
    store: HostingView | None = None
    # Where deeds are kept; None: in memory.
    folder: Path | None = None
    # What was learned, and where pages of results are.
    knowledge: Path | None = None
    results: tuple[Path, ...] = field(default=())


def console_application(options: ConsoleOptions) -> Doorkeeper:
    """It holds connections to the broker while it lives."""
    stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def living(app: Litestar) -> AsyncIterator[None]:
        app.state.sessions = Sessions(
            options.connect, options.store, needs_login=options.needs_login
        )
        tidying = asyncio.create_task(_tidy(app.state.sessions))
        ending = asyncio.create_task(_end_streams(app.state.sessions, stopping))
        try:
            yield
        finally:
            tidying.cancel()
            ending.cancel()
            await app.state.sessions.close()

    api = Router(
        path="/api",
        route_handlers=[openapi, *(one for module in MODULES for one in handlers(module))],
    )
    inner = Litestar(
        route_handlers=[api, *handlers(page_routes)],
        lifespan=[living],
        state=State(
            {
                "deeds": Deeds(options.folder),
                "stopping": stopping,
                "streams": set(),
                # Held while somebody changes how a queue scales.
                "changing": asyncio.Lock(),
                "tls": options.tls,
                "cookie_name": f"tidegate_session_{options.port}",
                "options": options,
            }
        ),
        exception_handlers={
            Refused: on_refused,
            TidegateError: on_error,
            HTTPException: on_http,
            Exception: on_bug,
        },
        # Described by an application of its own.
        openapi_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
        debug=False,
    )
    return Doorkeeper(inner, options.hosts, stopping, tls=options.tls)  # type: ignore[arg-type]


async def _end_streams(sessions: Sessions, stopping: asyncio.Event) -> None:
    """News never end by themselves, and whoever serves waits for answers that are under way."""
    await stopping.wait()
    await sessions.close()


async def _tidy(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(_TIDY_S)
        await sessions.tidy()
