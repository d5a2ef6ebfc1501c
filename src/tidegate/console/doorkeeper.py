"""Before and after every request: whose Host it names, where it comes from, what browsers may do.

    Host       must be ours: a foreign name that leads here (DNS rebinding) is refused
    Origin     if there is one, must be ours, for everything below /api
    headers    a strict content security policy and its kin, on every answer

Plain ASGI, so that it holds for whatever is behind it, files and errors included. Names of queues
may hold slashes: `%2F` in a path stays one, as a character that no name can hold. And they may be
`.` or `..`, which nobody gets through a browser: `%1E` before them says that they are names.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from tidegate.console.model import Problem
from tidegate.console.problems import Refused

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
# Pages that somebody has written: no script, no origin, nothing from anywhere.
RESULT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
API_PATH = "/api/"
RESULTS_PATH = "/api/results/"
# From the first byte of a body to its last: who sends a megabyte slower holds a connection.
BODY_S_MAX = 30.0
# Stands for a slash within a name; names hold no control characters.
SLASH = "\x1f"
# Stands before a name that would be a step in a path: browsers take such steps, also encoded ones.
NO_STEP = "\x1e"
_SLASHES = re.compile("/+")
_ENCODED_SLASH = re.compile(b"%2f", re.IGNORECASE)
# Listened on, these are all addresses of this machine, and the name of none.
ANYWHERE = ("", "0.0.0.0", "::")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(host: str, port: int, names: list[str], *, tls: bool) -> frozenset[str]:
    """What a Host header may say of a server that listens there."""
    here = {name.lower() for name in names}
    if host in ANYWHERE:
        here |= {socket.gethostname().lower(), socket.getfqdn().lower(), *_LOCAL_NAMES}
    else:
        here.add(f"[{host}]" if ":" in host else host.lower())
        if _is_loopback(host):
            here.update(_LOCAL_NAMES)
    usual = 443 if tls else 80
    with_port = {f"{name}:{port}" for name in here}
    # Names that were given may be those of a proxy before us, on a port of its own.
    bare = {name for name in here if port == usual} | {name.lower() for name in names}
    return frozenset(with_port | bare)


def shown_host(host: str, names: list[str]) -> str:
    """What to write into the address of a server that listens there: a name that is let in."""
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


def name_in(segment: str) -> str:
    """The name that a part of a path stands for."""
    return segment.replace(SLASH, "/").removeprefix(NO_STEP)


class Doorkeeper:
    """An ASGI application before another."""

    def __init__(
        self, inner: Application, hosts: frozenset[str], stopping: asyncio.Event, *, tls: bool
    ) -> None:
        self._inner = inner
        # Set by whoever serves it, before it is no longer served.
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
        # An image or frame of another site has no Origin. It would see nothing, and could still
        # hold a stream open or have everything looked at; links within a result lead on.
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
        # No Strict-Transport-Security: it would hold for every port of this host, for metrics and
        # whatever else is served there without TLS. Ours does not answer without.
        if _is_below(path, API_PATH):
            added["cache-control"] = "no-store"
        kept = [(name, value) for name, value in headers if name.decode().lower() not in added]
        return kept + [(name.encode(), value.encode()) for name, value in added.items()]


def _is_below(path: str, folder: str) -> bool:
    """However many slashes there are: what is behind us does not mind them either."""
    return _SLASHES.sub("/", path).startswith(folder)


def _in_time(receive: Receive) -> Receive:
    """The same, but a body that does not end is broken off."""
    until: float | None = None
    is_whole = False

    async def received() -> Message:
        nonlocal until, is_whole
        if is_whole:
            # What comes now is that somebody has gone, whenever that is.
            return await receive()
        if until is None:
            until = asyncio.get_running_loop().time() + BODY_S_MAX
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise Refused(
                408, "TOO_SLOW", f"a body has {BODY_S_MAX:g} s to come: send it at once"
            ) from None
        is_whole = not message.get("more_body", False)
        return message

    return received


def _headers(scope: Scope) -> dict[str, str]:
    """The first of each name; two Hosts are no Host."""
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
