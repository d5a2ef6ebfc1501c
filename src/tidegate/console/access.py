"""Authentication of a request: by session cookie, by HTTP Basic, or none if no login is needed.

A request that changes something also needs the session's token in a header, which a foreign page
cannot know. Programs need no token if they send a password, or if no login is needed and they send
no Origin.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any

from litestar import Request

from tidegate.console.person import Person
from tidegate.console.problems import Refused
from tidegate.console.sessions import Session, Sessions

TOKEN_HEADER = "x-tidegate-token"
_SAFE = ("GET", "HEAD", "OPTIONS")

AnyRequest = Request[Any, Any, Any]


def cookie_name(request: AnyRequest) -> str:
    """Return the name of the session cookie.

    It contains the port, because browsers send cookies to all ports of a host.
    """
    name: str = request.app.state.cookie_name
    return name


def sessions_of(request: AnyRequest) -> Sessions:
    found: Sessions = request.app.state.sessions
    return found


def session_of(request: AnyRequest) -> Session | None:
    return sessions_of(request).session(request.cookies.get(cookie_name(request)))


def address_of(request: AnyRequest) -> str:
    return request.client.host if request.client is not None else ""


async def person_of(request: AnyRequest) -> Person:
    """Return the user of a request; raise Refused or NotAuthenticated if it is not authenticated.

    If the user's rights may have changed, they are read again.
    """
    person = await _known(request)
    await person.refresh()
    return person


async def _known(request: AnyRequest) -> Person:
    sessions = sessions_of(request)
    if (given := _basic(request.headers.get("authorization"))) is not None:
        return await sessions.program(*given, address_of(request))
    session = session_of(request)
    changes = request.method not in _SAFE
    if session is not None:
        if changes:
            _check_token(request, session.token)
        return session.person
    person = await sessions.nobody()
    if changes and _is_browser(request):
        _check_token(request, sessions.open_token)
    return person


def _is_browser(request: AnyRequest) -> bool:
    return any(name in request.headers for name in ("origin", "sec-fetch-site", "sec-fetch-mode"))


def _check_token(request: AnyRequest, token: str) -> None:
    given = request.headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise Refused(
            403,
            "WRONG_TOKEN",
            "the token of the session is missing or old: send the one of GET /api/session as "
            "X-Tidegate-Token",
        )


def _basic(header: str | None) -> tuple[str, str] | None:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user, colon, password = "", "", ""
    if not user or not colon:
        raise Refused(401, "NOT_AUTHENTICATED", "Authorization: Basic base64(user:password)")
    return user, password
