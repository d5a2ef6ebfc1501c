"""The console as an ASGI application: the API, the page, and the middleware around both.

Theory of operation.

`SecurityMiddleware` checks every request, then Litestar routes it to a handler. A handler that
needs a user calls `user_connection_of`, which finds the user's `UserConnection` by cookie or
password.

Each `UserConnection` has one broker client and one `UserView`. The view polls nodes and store about
once a second while the user is active, and keeps the last 15 minutes of each service. Read
endpoints answer from the view, so the load on nodes does not depend on the number of pages. Write
endpoints act over the client and record an `AuditEntry`.

Shared state (`app.state`): the login sessions, the audit log, the open event streams, the event
`stopping`, and a lock for changes of a queue's scaling.

Shutdown: event streams never end by themselves, and the server waits for responses under way. So
`_end_streams` closes all sessions as soon as `stopping` is set.

Errors: exception handlers turn every error into a `Problem` with a code, a cause and a remedy.
Tracebacks go to the log only.
"""

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
# Seconds between two removals of unused user connections.
_TIDY_S = 30.0


@dataclass(frozen=True)
class ConsoleOptions:
    """The configuration of a console."""

    connect: Connect
    # Accepted values of the Host header.
    hosts: frozenset[str]
    port: int
    tls: bool = False
    # Demand a login even if the broker would accept anonymous clients.
    needs_login: bool = False
    # The store of services and agreement statuses; None means to ask the broker only.
    store: HostingView | None = None
    # Folder of the audit log; None keeps it in memory.
    folder: Path | None = None
    # Folder of learned models, and folders of report pages.
    knowledge: Path | None = None
    results: tuple[Path, ...] = field(default=())


def console_application(options: ConsoleOptions) -> Doorkeeper:
    """Return the console's ASGI application; it connects to the broker during its lifespan."""
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
        route_handlers=[api, page_routes.index, page_routes.page_file],
        lifespan=[living],
        state=State(
            {
                "deeds": Deeds(options.folder),
                "stopping": stopping,
                "streams": set(),
                # Serializes changes of a queue's scaling.
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
        # `openapi_document` generates the description.
        openapi_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
        debug=False,
    )
    return Doorkeeper(inner, options.hosts, stopping, tls=options.tls)  # type: ignore[arg-type]


async def _end_streams(sessions: Sessions, stopping: asyncio.Event) -> None:
    """Close all sessions at shutdown: event streams never end, and the server waits for them."""
    await stopping.wait()
    await sessions.close()


async def _tidy(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(_TIDY_S)
        await sessions.tidy()
