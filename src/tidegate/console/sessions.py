"""Logins: browser sessions by cookie, and programs that send a password with each request.

Theory of operation.

A login of the console is a login at the broker (SCRAM). So the broker checks all passwords, and the
console stores none: only a keyed digest of the passwords that programs send, in memory.

Objects:

- `UserConnection`: one per user, shared by all sessions and programs of the user.
- `LoginSession`: one per browser. Its secret is in the cookie; its token must be sent with every
  change.
- An entry of `_programs`: a program's password that was checked less than a minute ago.

Each login opens a new connection as proof of the password. If the user has one already, the new one
is closed again.

Bounds: 1,000 sessions, 20 per user (the oldest are removed), 32 users, 100 programs. A session ends
30 minutes after its last request, and 12 hours after the login in any case.

Guessing. Wrong passwords are counted per minute for a user from one address, for one address, and
for a user. Above the first two limits further logins are refused. The third only delays logins, so
attackers cannot lock a user out. Every refusal takes at least a second and has the same text, which
reveals nothing about the cause.

`tidy` closes connections without a session, program or stream. It runs regularly, at logout, and
before a login that needs a new user connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody

from tidegate import __version__
from tidegate.client.address import Credentials
from tidegate.console.schemas import Health, Login, Who
from tidegate.console.security import RequestRefused, error_responses
from tidegate.console.snapshot import ConsoleStore
from tidegate.console.watch import Connect, UserConnection
from tidegate.core.errors import LimitReached, NotAuthenticated, TidegateError, Unavailable

IDLE_S = 30 * 60.0
# Applies to active sessions too: a stolen token expires.
LIFE_S = 12 * 3600.0
SESSIONS_MAX = 1_000
SESSIONS_PER_USER_MAX = 20
USER_CONNECTIONS_MAX = 32
# A program's password is not checked again until this long after its last request.
PROGRAM_IDLE_S = 60.0
PROGRAMS_MAX = 100
# Wrong passwords per minute from one address, for one user and in total. Guesses from elsewhere
# never lock a user out: many wrong passwords for a user only delay each login by `GUESSED_AT_S`.
GUESSES_MAX = 10
GUESSES_OF_ADDRESS_MAX = 50
GUESSES_S = 60.0
GUESSED_AT_S = 2.0
# Minimum duration of a refusal: it hides the cause, and slows guessing.
REFUSAL_S = 1.0
_LOGINS_AT_A_TIME = 4
_WRONG = "user or password is wrong"


@dataclass
class LoginSession:
    """One browser that is logged in."""

    person: UserConnection
    # Clients send it in a header with every change.
    token: str
    began_at: float
    used_at: float


class LoginSessions:
    """All sessions, programs and user connections of the console."""

    def __init__(
        self,
        connect: Connect,
        store: ConsoleStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        needs_login: bool = False,
    ) -> None:
        self._connect = connect
        # Set if the console is reachable from places where the broker would not trust anonymous
        # clients.
        self._needs_login = needs_login
        self._store = store
        self._clock = clock
        self._sessions: dict[str, LoginSession] = {}
        self._persons: dict[str, UserConnection] = {}
        # Connection and time of last use, by a keyed digest of user and password.
        self._programs: dict[bytes, tuple[UserConnection, float]] = {}
        self._digest_key = secrets.token_bytes(32)
        self._wrong: dict[str, deque[float]] = {}
        self._logging_in = asyncio.Semaphore(_LOGINS_AT_A_TIME)
        self._anybody = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        # The token of pages that need no login.
        self.open_token = secrets.token_urlsafe(24)

    async def log_in(self, user: str, password: str, address: str) -> tuple[str, LoginSession]:
        """Return the secret for the cookie and the session.

        Raises NotAuthenticated after at least a second if user or password is wrong.
        """
        person = await self._checked(user, password, address)
        now = self._clock()
        self._remove(now)
        own = sorted(
            (one.used_at, secret)
            for secret, one in self._sessions.items()
            if one.person.user == user
        )
        for _, secret in own[: max(len(own) - SESSIONS_PER_USER_MAX + 1, 0)]:
            del self._sessions[secret]
        if len(self._sessions) >= SESSIONS_MAX:
            raise LimitReached(f"{SESSIONS_MAX} sessions are open: close some, or wait")
        secret = secrets.token_urlsafe(32)
        session = LoginSession(person, secrets.token_urlsafe(24), now, now)
        self._sessions[secret] = session
        return secret, session

    def session(self, secret: str | None) -> LoginSession | None:
        """Return the session of a cookie; None if there is none, or it has expired."""
        now = self._clock()
        self._remove(now)
        found = self._sessions.get(secret or "")
        if found is not None:
            found.used_at = now
        return found

    async def log_out(self, secret: str | None) -> None:
        self._sessions.pop(secret or "", None)
        await self.tidy()

    async def program(self, user: str, password: str, address: str) -> UserConnection:
        """Return the user of a program that sends HTTP Basic credentials."""
        now = self._clock()
        told = f"{len(user)}:{user}{password}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._digest_key, told, hashlib.sha256)
        known = self._programs.get(digest)
        if known is not None and now - known[1] < PROGRAM_IDLE_S and not known[0].is_gone:
            self._programs[digest] = (known[0], now)
            return known[0]
        person = await self._checked(user, password, address)
        if len(self._programs) >= PROGRAMS_MAX:
            self._programs.clear()
        self._programs[digest] = (person, self._clock())
        return person

    async def nobody(self) -> UserConnection:
        """Return the anonymous user; raise NotAuthenticated if a login is needed."""
        if self._needs_login:
            raise NotAuthenticated("log in")
        async with self._anybody:
            known = self._persons.get("")
            if known is not None and not known.is_gone:
                return known
            if known is not None:
                del self._persons[""]
                await known.close()
            person = await UserConnection.logged_in(self._connect, None, self._store)
            self._persons[""] = person
            return person

    async def tidy(self) -> None:
        """Close the connections of users without a session, a program or a stream."""
        now = self._clock()
        self._remove(now)
        self._programs = {
            digest: (person, used_at)
            for digest, (person, used_at) in self._programs.items()
            if now - used_at < PROGRAM_IDLE_S and not person.is_gone
        }
        wanted = {id(one.person) for one in self._sessions.values()}
        wanted |= {id(person) for person, _ in self._programs.values()}
        # A program that only reads an event stream sends no other requests.
        wanted |= {id(person) for person in self._persons.values() if person.streams}
        gone = {
            user: person
            for user, person in self._persons.items()
            if id(person) not in wanted and (user or person.is_gone)
        }
        # Remove all of them before the first await: a login meanwhile must not get a connection
        # that is about to close.
        for user in gone:
            del self._persons[user]
        await asyncio.gather(*(person.close() for person in gone.values()))

    async def close(self) -> None:
        self._sessions.clear()
        self._programs.clear()
        for person in list(self._persons.values()):
            await person.close()
        self._persons.clear()
        await asyncio.gather(*self._ending)

    # Password checks

    async def _checked(self, user: str, password: str, address: str) -> UserConnection:
        """Check a password at the broker, and return the user's connection."""
        begun = self._clock()
        self._refuse_guessing(user, address)
        if len(self._wrong.get(_user(user), ())) >= GUESSES_MAX:
            await asyncio.sleep(GUESSED_AT_S)
        try:
            async with self._logging_in:
                # Check again: hundreds of guesses may have waited here, and some have failed
                # meanwhile.
                self._refuse_guessing(user, address)
                credentials = Credentials(user, password)
                person = await UserConnection.logged_in(self._connect, credentials, self._store)
        except (Unavailable, LimitReached):
            raise
        except TidegateError:
            # Neither text nor duration reveals the cause.
            for who, most in _counted(user, address):
                self._wrong.setdefault(who, deque(maxlen=most)).append(self._clock())
            await asyncio.sleep(max(REFUSAL_S - (self._clock() - begun), 0.0))
            raise NotAuthenticated(_WRONG) from None
        if not self._is_here(user):
            await self.tidy()
        # No await from here on: `tidy` must not remove a known connection meanwhile, and the second
        # of two concurrent first logins must find the first.
        known = self._persons.get(user)
        if known is not None and not known.is_gone:
            # The new connection was only needed to check the password.
            self._end(person)
            return known
        if known is None and len(self._persons) >= USER_CONNECTIONS_MAX:
            self._end(person)
            raise LimitReached(
                f"{USER_CONNECTIONS_MAX} users are here already: wait until one has gone"
            )
        if known is not None:
            self._end(known)
        self._persons[user] = person
        return person

    def _is_here(self, user: str) -> bool:
        known = self._persons.get(user)
        return known is not None and not known.is_gone

    def _end(self, person: UserConnection) -> None:
        task = asyncio.create_task(person.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _refuse_guessing(self, user: str, address: str) -> None:
        now = self._clock()
        for who in list(self._wrong):
            times = self._wrong[who]
            while times and now - times[0] > GUESSES_S:
                times.popleft()
            if not times:
                del self._wrong[who]
        for who, most in _counted(user, address):
            if who != _user(user) and len(self._wrong.get(who, ())) >= most:
                raise LimitReached(
                    f"{most} wrong passwords from here within a minute: wait for a minute"
                )

    def _remove(self, now: float) -> None:
        for secret, one in list(self._sessions.items()):
            idle = now - one.used_at > IDLE_S or now - one.began_at > LIFE_S
            if idle or one.person.is_gone:
                del self._sessions[secret]


def _user(user: str) -> str:
    return f"user {user}"


def _counted(user: str, address: str) -> tuple[tuple[str, int], ...]:
    """Return the counters of a wrong password, and their limits."""
    return (
        (f"address {address}, user {user}", GUESSES_MAX),
        (f"address {address}", GUESSES_OF_ADDRESS_MAX),
        (_user(user), GUESSES_MAX),
    )


# Authentication of a request: by session cookie, by HTTP Basic, or none if no login is needed.
#
# A request that changes something also needs the session's token in a header, which a foreign page
# cannot know. Programs need no token if they send a password, or if no login is needed and they
# send no Origin.


TOKEN_HEADER = "x-tidegate-token"
_SAFE = ("GET", "HEAD", "OPTIONS")

AnyRequest = Request[Any, Any, Any]


def cookie_name(request: AnyRequest) -> str:
    """Return the name of the session cookie.

    It contains the port, because browsers send cookies to all ports of a host.
    """
    name: str = request.app.state.cookie_name
    return name


def sessions_of(request: AnyRequest) -> LoginSessions:
    found: LoginSessions = request.app.state.sessions
    return found


def session_of(request: AnyRequest) -> LoginSession | None:
    return sessions_of(request).session(request.cookies.get(cookie_name(request)))


def address_of(request: AnyRequest) -> str:
    return request.client.host if request.client is not None else ""


async def user_connection_of(request: AnyRequest) -> UserConnection:
    """Return the user of a request; raise Refused or NotAuthenticated if it is not authenticated.

    If the user's rights may have changed, they are read again.
    """
    person = await _known(request)
    await person.refresh()
    return person


async def _known(request: AnyRequest) -> UserConnection:
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
        raise RequestRefused(
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
        raise RequestRefused(401, "NOT_AUTHENTICATED", "Authorization: Basic base64(user:password)")
    return user, password


# Endpoints for login and logout.


def _who(person: UserConnection, token: str) -> Who:
    return Who(
        user=person.user,
        read_only=person.read_only,
        is_admin=person.is_admin,
        token=token,
        version=__version__,
    )


@get(
    "/session",
    responses=error_responses(),
    operation_id="who",
    needs="–",
    summary="Who is logged in",
)
async def who(request: AnyRequest) -> Who:
    """Return the logged-in user; 401 if a login is needed."""
    session = session_of(request)
    person = await user_connection_of(request)
    token = sessions_of(request).open_token if session is None else session.token
    # Programs that send a password need no token.
    return _who(person, "" if session is None and person.user else token)


@post(
    "/session",
    status_code=200,
    responses=error_responses(),
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
    responses=error_responses(),
    operation_id="log_out",
    needs="–",
    summary="Log out",
)
async def log_out(request: AnyRequest) -> Response[None]:
    if session_of(request) is not None:
        # Needs the token, as every change does.
        await user_connection_of(request)
        await sessions_of(request).log_out(request.cookies.get(cookie_name(request)))
    response: Response[None] = Response(None, status_code=204)
    response.delete_cookie(cookie_name(request), path="/")
    return response


@get("/healthz", operation_id="healthz", needs="–", summary="Whether the console is there")
async def healthz() -> Health:
    return Health("ok", __version__)
