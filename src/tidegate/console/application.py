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
import hashlib
import logging
import mimetypes
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import msgspec
import uvicorn
from litestar import Litestar, MediaType, Response, Router, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import PathParameter
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate import __version__
from tidegate.console import actions, reports, sessions, views
from tidegate.console.actions import AuditLog
from tidegate.console.schemas import RequestBody
from tidegate.console.security import (
    RequestRefused,
    SecurityMiddleware,
    on_bug,
    on_error,
    on_http,
    on_refused,
)
from tidegate.console.sessions import AnyRequest, LoginSessions
from tidegate.console.snapshot import ConsoleStore
from tidegate.console.watch import Connect
from tidegate.core.errors import TidegateError, Unavailable

log = logging.getLogger(__name__)

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
    store: ConsoleStore | None = None
    # Folder of the audit log; None keeps it in memory.
    folder: Path | None = None
    # Folder of learned models, and folders of report pages.
    knowledge: Path | None = None
    results: tuple[Path, ...] = field(default=())


def console_application(options: ConsoleOptions) -> SecurityMiddleware:
    """Return the console's ASGI application; it connects to the broker during its lifespan."""
    stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def living(app: Litestar) -> AsyncIterator[None]:
        app.state.sessions = LoginSessions(
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
        route_handlers=[api, index, page_file],
        lifespan=[living],
        state=State(
            {
                "deeds": AuditLog(options.folder),
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
            RequestRefused: on_refused,
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
    return SecurityMiddleware(inner, options.hosts, stopping, tls=options.tls)  # type: ignore[arg-type]


async def _end_streams(sessions: LoginSessions, stopping: asyncio.Event) -> None:
    """Close all sessions at shutdown: event streams never end, and the server waits for them."""
    await stopping.wait()
    await sessions.close()


async def _tidy(sessions: LoginSessions) -> None:
    while True:
        await asyncio.sleep(_TIDY_S)
        await sessions.tidy()


# The console's HTTP server.


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
    application: SecurityMiddleware, listener: socket.socket, tls: ServerTls | None = None
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


# The page's files, served from the package.


_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
FilePath = Annotated[str, PathParameter(max_length=200)]


@get("/", include_in_schema=False)
async def index(request: AnyRequest) -> Response[bytes]:
    return _file_response(request, _file(files("tidegate.console") / "page", "index.html"))


@get("/page/{path:path}", include_in_schema=False)
async def page_file(request: AnyRequest, path: FilePath) -> Response[bytes]:
    return _file_response(request, _file(files("tidegate.console") / "page", path))


def _not_there() -> RequestRefused:
    return RequestRefused(404, "NOT_FOUND", "there is no such file")


def _file(root: Traversable, path: str) -> tuple[bytes, str]:
    parts = [part for part in path.split("/") if part]
    # Only plain file names: no parent folders, no hidden files.
    if not parts or any(part.startswith(".") or "\\" in part or "\0" in part for part in parts):
        raise _not_there()
    suffix = "." + parts[-1].rpartition(".")[2]
    media_type = _TYPES.get(suffix) or mimetypes.types_map.get(suffix)
    found = root.joinpath(*parts)
    if media_type is None or not found.is_file():
        raise _not_there()
    return found.read_bytes(), media_type


@cache
def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _file_response(request: AnyRequest, file: tuple[bytes, str]) -> Response[bytes]:
    content, media_type = file
    tag = _tag(content)
    # Browsers revalidate each time, and get the file only if it has changed. A new version appears
    # at once.
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=media_type)
    return Response(content, headers=headers, media_type=media_type)


# The API's OpenAPI description, generated from its routes and structs.
#
# A second application, which is never served, generates it. In the served one Litestar would add a
# viewer at the root and error pages in HTML.


@cache
def openapi_document() -> bytes:
    """Return the OpenAPI description as JSON."""
    routes = [one for module in MODULES for one in handlers(module)]
    application = Litestar(
        route_handlers=[Router(path="/api", route_handlers=routes)],
        openapi_config=OpenAPIConfig(
            title="Tidegate console",
            version=__version__,
            description="All that the console does, for programs.",
            render_plugins=[JsonRenderPlugin()],
        ),
        logging_config=None,
    )
    description = application.openapi_schema.to_schema()
    # msgspec describes request bodies exactly, including that unknown fields are refused.
    _, schemas = msgspec.json.schema_components(
        RequestBody.__subclasses__(), ref_template="#/components/schemas/{name}"
    )
    description["components"]["schemas"] |= schemas
    return msgspec.json.encode(description)


@get("/openapi.json", include_in_schema=False)
async def openapi() -> Response[bytes]:
    return Response(openapi_document(), media_type=MediaType.JSON)


# The table of API calls in docs/console-api.md, generated from the routes.


MODULES = (sessions, views, actions, reports)


def handlers(module: ModuleType) -> Iterator[HTTPRouteHandler]:
    """Yield the routes of a module in the order of their definition."""
    for one in vars(module).values():
        if isinstance(one, HTTPRouteHandler):
            yield one


def table() -> str:
    """Return the table: each call, its purpose, and the right that it needs."""
    lines = ["| call | what | needs |", "|---|---|---|"]
    for module in MODULES:
        for one in handlers(module):
            method = ", ".join(sorted(str(each) for each in one.http_methods))
            for path in sorted(one.paths):
                shown = path.replace(":str}", "}").replace(":path}", "}")
                lines.append(
                    f"| `{method} /api{shown}` | {one.summary} | {one.opt.get('needs', '')} |"
                )
    lines.append("| `GET /api/openapi.json` | This, for programs | – |")
    return "\n".join(lines)
