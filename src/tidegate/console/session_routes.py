"""Endpoints for login and logout."""

from __future__ import annotations

from litestar import Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody

from tidegate import __version__
from tidegate.console.access import (
    AnyRequest,
    address_of,
    cookie_name,
    person_of,
    session_of,
    sessions_of,
)
from tidegate.console.model import Who
from tidegate.console.person import Person
from tidegate.console.problems import answers
from tidegate.console.sessions import LIFE_S
from tidegate.console.wishes import Health, Login


def _who(person: Person, token: str) -> Who:
    return Who(
        user=person.user,
        read_only=person.read_only,
        is_admin=person.is_admin,
        token=token,
        version=__version__,
    )


@get("/session", responses=answers(), operation_id="who", needs="–", summary="Who is logged in")
async def who(request: AnyRequest) -> Who:
    """Return the logged-in user; 401 if a login is needed."""
    session = session_of(request)
    person = await person_of(request)
    token = sessions_of(request).open_token if session is None else session.token
    # Programs that send a password need no token.
    return _who(person, "" if session is None and person.user else token)


@post(
    "/session",
    status_code=200,
    responses=answers(),
    operation_id="log_in",
    needs="–",
    summary="Log in",
)
async def log_in(request: AnyRequest, data: JSONBody[Login]) -> Response[Who]:
    """Log in at the broker under the same name; the session is in a cookie."""
    secret, session = await sessions_of(request).log_in(
        data.user, data.password, address_of(request)
    )
    cookie = Cookie(
        key=cookie_name(request),
        value=secret,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.app.state.tls,
        max_age=int(LIFE_S),
    )
    return Response(_who(session.person, session.token), cookies=[cookie])


@delete(
    "/session",
    status_code=204,
    responses=answers(),
    operation_id="log_out",
    needs="–",
    summary="Log out",
)
async def log_out(request: AnyRequest) -> Response[None]:
    if session_of(request) is not None:
        # Needs the token, as every change does.
        await person_of(request)
        await sessions_of(request).log_out(request.cookies.get(cookie_name(request)))
    response: Response[None] = Response(None, status_code=204)
    response.delete_cookie(cookie_name(request), path="/")
    return response


@get("/healthz", operation_id="healthz", needs="–", summary="Whether the console is there")
async def healthz() -> Health:
    return Health("ok", __version__)
