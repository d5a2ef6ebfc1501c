"""Who is logged in: tokens in cookies, and programs that send their password each time.

A login is one at the broker (SCRAM), so passwords are checked where they always are, and nothing of
them is kept but a keyed digest of those that programs send. Everything is bounded: sessions in all
and per user, users at a time, how long an idle session lasts, and how often somebody may guess.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.client.credentials import Credentials
from tidegate.console.person import Connect, Person
from tidegate.console.sight import HostingView
from tidegate.core.errors import LimitReached, NotAuthenticated, TidegateError, Unavailable

IDLE_S = 30 * 60.0
# However busy: a token that was stolen is not good for ever.
LIFE_S = 12 * 3600.0
SESSIONS_MAX = 1_000
SESSIONS_PER_USER_MAX = 20
PERSONS_MAX = 32
# A program's password is not checked again for so long after its last request.
PROGRAM_IDLE_S = 60.0
PROGRAMS_MAX = 100
# Wrong passwords in a minute that one address may send for one user, and for all users. Nobody is
# kept out by what others send from elsewhere: whoever is guessed at from everywhere waits a little.
GUESSES_MAX = 10
GUESSES_OF_ADDRESS_MAX = 50
GUESSES_S = 60.0
GUESSED_AT_S = 2.0
# A refusal takes as long whatever was wrong, and long enough that guessing is no use.
REFUSAL_S = 1.0
_LOGINS_AT_A_TIME = 4
_WRONG = "user or password is wrong"


@dataclass
class Session:
    """One browser that is logged in."""

    person: Person
    # Sent back in a header with everything that changes something.
    token: str
    began_at: float
    used_at: float


class Sessions:
    """All of them."""

    def __init__(
        self,
        connect: Connect,
        store: HostingView | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        needs_login: bool = False,
    ) -> None:
        self._connect = connect
        # Whatever the broker says: we can be reached from where it would not trust anybody.
        self._needs_login = needs_login
        self._store = store
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._persons: dict[str, Person] = {}
        # By a keyed digest of user and password.
        self._programs: dict[bytes, tuple[Person, float]] = {}
        self._digest_key = secrets.token_bytes(32)
        self._wrong: dict[str, deque[float]] = {}
        self._logging_in = asyncio.Semaphore(_LOGINS_AT_A_TIME)
        self._anybody = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        # Of pages on a machine where nobody logs in.
        self.open_token = secrets.token_urlsafe(24)

    async def log_in(self, user: str, password: str, address: str) -> tuple[str, Session]:
        """The secret for the cookie, and the session; NotAuthenticated after a while."""
        person = await self._checked(user, password, address)
        now = self._clock()
        self._forget(now)
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
        session = Session(person, secrets.token_urlsafe(24), now, now)
        self._sessions[secret] = session
        return secret, session

    def session(self, secret: str | None) -> Session | None:
        """The session of a cookie; None: there is none, or no longer."""
        now = self._clock()
        self._forget(now)
        found = self._sessions.get(secret or "")
        if found is not None:
            found.used_at = now
        return found

    async def log_out(self, secret: str | None) -> None:
        self._sessions.pop(secret or "", None)
        await self.tidy()

    async def program(self, user: str, password: str, address: str) -> Person:
        """Who a program says it is, by HTTP Basic."""
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

    async def nobody(self) -> Person:
        """Who has not logged in, where nobody needs to; NotAuthenticated elsewhere."""
        if self._needs_login:
            raise NotAuthenticated("log in")
        async with self._anybody:
            known = self._persons.get("")
            if known is not None and not known.is_gone:
                return known
            if known is not None:
                del self._persons[""]
                await known.close()
            person = await Person.logged_in(self._connect, None, self._store)
            self._persons[""] = person
            return person

    async def tidy(self) -> None:
        """End the connections of users that nobody is here as."""
        now = self._clock()
        self._forget(now)
        self._programs = {
            digest: (person, used_at)
            for digest, (person, used_at) in self._programs.items()
            if now - used_at < PROGRAM_IDLE_S and not person.is_gone
        }
        wanted = {id(one.person) for one in self._sessions.values()}
        wanted |= {id(person) for person, _ in self._programs.values()}
        # A program that only listens does not ask again.
        wanted |= {id(person) for person in self._persons.values() if person.streams}
        gone = {
            user: person
            for user, person in self._persons.items()
            if id(person) not in wanted and (user or person.is_gone)
        }
        # All of them before anything is waited for: whoever logs in while one is being closed is
        # not to come in over a connection that is closed next.
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

    # Checking

    async def _checked(self, user: str, password: str, address: str) -> Person:
        """The person with that name and password."""
        begun = self._clock()
        self._refuse_guessing(user, address)
        if len(self._wrong.get(_user(user), ())) >= GUESSES_MAX:
            await asyncio.sleep(GUESSED_AT_S)
        try:
            async with self._logging_in:
                # Once more: those before us may have been wrong while we waited for our turn, and
                # hundreds of guesses at once are to be no more than some.
                self._refuse_guessing(user, address)
                credentials = Credentials(user, password)
                person = await Person.logged_in(self._connect, credentials, self._store)
        except (Unavailable, LimitReached):
            raise
        except TidegateError:
            # Whatever was wrong with it: who asks learns nothing from the sentence or the time.
            for who, most in _counted(user, address):
                self._wrong.setdefault(who, deque(maxlen=most)).append(self._clock())
            await asyncio.sleep(max(REFUSAL_S - (self._clock() - begun), 0.0))
            raise NotAuthenticated(_WRONG) from None
        if not self._is_here(user):
            await self.tidy()
        # Nothing is waited for from here on: whoever is known must not be tidied away meanwhile,
        # and of two first logins of a user, the second finds the first.
        known = self._persons.get(user)
        if known is not None and not known.is_gone:
            # Nothing but the proof was needed of the new connection.
            self._end(person)
            return known
        if known is None and len(self._persons) >= PERSONS_MAX:
            self._end(person)
            raise LimitReached(f"{PERSONS_MAX} users are here already: wait until one has gone")
        if known is not None:
            self._end(known)
        self._persons[user] = person
        return person

    def _is_here(self, user: str) -> bool:
        known = self._persons.get(user)
        return known is not None and not known.is_gone

    def _end(self, person: Person) -> None:
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

    def _forget(self, now: float) -> None:
        for secret, one in list(self._sessions.items()):
            idle = now - one.used_at > IDLE_S or now - one.began_at > LIFE_S
            if idle or one.person.is_gone:
                del self._sessions[secret]


def _user(user: str) -> str:
    return f"user {user}"


def _counted(user: str, address: str) -> tuple[tuple[str, int], ...]:
    """Whom a wrong password counts against, and how many do."""
    return (
        (f"address {address}, user {user}", GUESSES_MAX),
        (f"address {address}", GUESSES_OF_ADDRESS_MAX),
        (_user(user), GUESSES_MAX),
    )
