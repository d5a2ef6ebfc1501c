"""Error responses: a code, the cause and the remedy, and never a traceback."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from tidegate.console.schemas import Problem
from tidegate.core import errors

log = logging.getLogger(__name__)

# The first match counts.
_STATUS: tuple[tuple[type[errors.TidegateError], int], ...] = (
    (errors.QueueNotExisting, 404),
    (errors.TopicNotExisting, 404),
    (errors.ClientNotExisting, 404),
    (errors.UniqueConstraint, 409),
    (errors.ChangedMeanwhile, 409),
    (errors.Forbidden, 403),
    (errors.ModeForbids, 403),
    (errors.NotAuthenticated, 401),
    (errors.TooLarge, 413),
    (errors.LimitReached, 429),
    (errors.CallerError, 400),
    (errors.RetryLater, 503),
)
_WORDS = {
    400: ("INVALID", "the request cannot be understood"),
    401: ("NOT_AUTHENTICATED", "log in"),
    403: ("FORBIDDEN", "this user may not do that"),
    404: ("NOT_FOUND", "there is nothing of that name: see /api/openapi.json for what there is"),
    405: ("METHOD_NOT_ALLOWED", "not with this method: see /api/openapi.json"),
    409: ("CONFLICT", "there is one of that name"),
    413: ("TOO_LARGE", "the request is too large"),
    415: ("NOT_JSON", "send JSON, with Content-Type: application/json"),
    429: ("LIMIT_REACHED", "too many: wait a moment"),
    503: ("UNAVAILABLE", "no node answers: look whether `tidegate up` runs"),
}
_BUG = ("INTERNAL_ERROR", "a bug of ours: the log of the console says more")


class RequestRefused(Exception):
    """A request that the console refuses, not the broker."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        self.status = status
        self.problem = Problem(error=error, detail=detail)
        super().__init__(detail)


def error_responses(*statuses: int) -> dict[int, ResponseSpec]:
    """Return the descriptions of these error statuses, and of the common ones."""
    return {
        status: ResponseSpec(
            data_container=Problem, description=_WORDS[status][1], generate_examples=False
        )
        for status in sorted({*statuses, 400, 401, 403, 405, 413, 429, 503})
    }


def _problem_response(status: int, problem: Problem) -> Response[bytes]:
    # Not Basic, although programs may use it: browsers would open their own password dialog.
    headers = {"WWW-Authenticate": 'Session realm="tidegate"'} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = "1" if status == 503 else "60"
    # Encode here: the framework's encoding must not fail on an error response.
    return Response(
        msgspec.json.encode(problem),
        status_code=status,
        media_type=MediaType.JSON,
        headers=headers,
    )


def on_refused(_: Request[Any, Any, Any], refused: RequestRefused) -> Response[bytes]:
    return _problem_response(refused.status, refused.problem)


def on_error(_: Request[Any, Any, Any], error: errors.TidegateError) -> Response[bytes]:
    """Respond to an error from the broker."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        log.error("unexpected: %r", error)
        return _problem_response(500, Problem(error=_BUG[0], detail=_BUG[1]))
    return _problem_response(status, Problem(error=error.name, detail=str(error)))


def on_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Respond to an error from the framework, such as an unknown path or a missing field."""
    status = error.status_code
    if status >= 500:
        log.error("unexpected: %r", error, exc_info=error)
        return _problem_response(500, Problem(error=_BUG[0], detail=_BUG[1]))
    name, what = _WORDS.get(status, _WORDS[400])
    if status == 400 and isinstance(error.extra, list):
        # The field and what is wrong with it.
        told = [
            f"{one.get('key', '')}: {one['message']}".removeprefix(": ")
            for one in error.extra
            if isinstance(one, dict) and "message" in one
        ]
        what = "; ".join(told) or what
    elif status == 400:
        what = error.detail or what
    return _problem_response(status, Problem(error=name, detail=what[:500]))


def on_bug(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, TimeoutError):
        return _problem_response(
            503, Problem(error=_WORDS[503][0], detail="no answer in time: try again")
        )
    log.error("a bug", exc_info=error)
    return _problem_response(500, Problem(error=_BUG[0], detail=_BUG[1]))


# Security checks before every request, and security headers on every response.
#
#     Host       must name this console; else it is DNS rebinding: a foreign name that resolves here
#     Origin     if present, must be the console's own for all paths below /api
#     headers    a strict content security policy and related headers on every response
#
# It is plain ASGI middleware, so it covers files and errors too.
#
# Names of queues in a path need two escapes. `%2F` becomes a control character that no name
# contains,
# so that the slash does not split the segment. `%1E` before a segment marks a name such as `.` or
# `..`, which browsers would otherwise resolve as a step in the path.


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; frame-src 'self'"
)
# For report pages: no scripts, no origin, no external resources.
RESULT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
API_PATH = "/api/"
RESULTS_PATH = "/api/results/"
# Seconds from the first byte of a body to its last. Slower clients would hold connections.
BODY_S_MAX = 30.0
# Replaces a slash within a name; names contain no control characters.
SLASH = "\x1f"
# Precedes a name that browsers would resolve as a step in the path, even if percent-encoded.
NO_STEP = "\x1e"
_SLASHES = re.compile("/+")
_ENCODED_SLASH = re.compile(b"%2f", re.IGNORECASE)
# As a listening address these mean all addresses of this machine; they are no host names.
ANYWHERE = ("", "0.0.0.0", "::")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(host: str, port: int, names: list[str], *, tls: bool) -> frozenset[str]:
    """Return the accepted values of the Host header for a server at this address."""
    here = {name.lower() for name in names}
    if host in ANYWHERE:
        here |= {socket.gethostname().lower(), socket.getfqdn().lower(), *_LOCAL_NAMES}
    else:
        here.add(f"[{host}]" if ":" in host else host.lower())
        if _is_loopback(host):
            here.update(_LOCAL_NAMES)
    usual = 443 if tls else 80
    with_port = {f"{name}:{port}" for name in here}
    # Configured names may belong to a proxy in front of the console, with another port.
    bare = {name for name in here if port == usual} | {name.lower() for name in names}
    return frozenset(with_port | bare)


def url_host(host: str, names: list[str]) -> str:
    """Return the host for the console's URL: a name that `allowed_hosts` accepts."""
    if host in ANYWHERE:
        host = names[0] if names else socket.getfqdn().lower()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def decoded_name(segment: str) -> str:
    """Return the name that a path segment encodes."""
    return segment.replace(SLASH, "/").removeprefix(NO_STEP)


class SecurityMiddleware:
    """ASGI middleware that checks requests and adds security headers to responses."""

    def __init__(
        self, inner: Application, hosts: frozenset[str], stopping: asyncio.Event, *, tls: bool
    ) -> None:
        self._inner = inner
        # Set by the server before it stops.
        self.stopping = stopping
        self._hosts = hosts
        schemes = ("https",) if tls else ("http",)
        self._origins = {f"{scheme}://{host}" for scheme in schemes for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inner(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._guarded(scope["path"], message["headers"])
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(guarded, *refusal)
            return
        await self._inner(_with_slashes(scope), _in_time(receive), guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = _headers(scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return (
                421,
                "WRONG_HOST",
                "this console does not go by that name: use the address that it printed, or allow "
                "the name with [console] names",
            )
        if not _is_below(scope["path"], API_PATH):
            return None
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            return (
                403,
                "FOREIGN_ORIGIN",
                "another site asked for this; open the console itself, or call the API from a "
                "program, without an Origin",
            )
        # Images and frames of another site have no Origin. They could not read the response, but
        # could hold a stream open or cause polling. Links inside a report page are allowed.
        is_link = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if headers.get("sec-fetch-site") not in (None, "same-origin", "none") and not (
            is_link and _is_below(scope["path"], RESULTS_PATH)
        ):
            return 403, "FOREIGN_ORIGIN", "another site asked for this"
        return None

    def _guarded(self, path: str, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        is_result = _is_below(path, RESULTS_PATH)
        added = {
            "content-security-policy": RESULT_POLICY if is_result else CONTENT_POLICY,
            "x-content-type-options": "nosniff",
            "x-frame-options": "SAMEORIGIN" if is_result else "DENY",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        }
        # No Strict-Transport-Security: it would apply to all ports of the host, also to services
        # without TLS, such as metrics. This port answers with TLS only anyway.
        if _is_below(path, API_PATH):
            added["cache-control"] = "no-store"
        kept = [(name, value) for name, value in headers if name.decode().lower() not in added]
        return kept + [(name.encode(), value.encode()) for name, value in added.items()]


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is below a folder.

    Repeated slashes count as one, as they do for the router.
    """
    return _SLASHES.sub("/", path).startswith(folder)


def _in_time(receive: Receive) -> Receive:
    """Return a `receive` that refuses a body which takes longer than `BODY_S_MAX`."""
    until: float | None = None
    is_whole = False

    async def received() -> Message:
        nonlocal until, is_whole
        if is_whole:
            # After the body only a disconnect can follow, at any time.
            return await receive()
        if until is None:
            until = asyncio.get_running_loop().time() + BODY_S_MAX
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise RequestRefused(
                408, "TOO_SLOW", f"a body has {BODY_S_MAX:g} s to come: send it at once"
            ) from None
        is_whole = not message.get("more_body", False)
        return message

    return received


def _headers(scope: Scope) -> dict[str, str]:
    """Return the first value of each header; a repeated Host counts as empty."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key == "host" and key in found:
            found[key] = ""
        found.setdefault(key, value.decode("latin-1"))
    return found


def _with_slashes(scope: Scope) -> Scope:
    raw = scope.get("raw_path")
    if not raw or not _ENCODED_SLASH.search(raw):
        return scope
    path = unquote_to_bytes(_ENCODED_SLASH.sub(SLASH.encode(), raw.partition(b"?")[0]))
    return {**scope, "path": path.decode("utf-8", "replace"), "raw_path": raw}


async def _refuse(send: Send, status: int, error: str, detail: str) -> None:
    body = msgspec.json.encode(Problem(error=error, detail=detail))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
