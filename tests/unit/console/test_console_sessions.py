"""Sessions have bounds, and go with whoever they are of."""

from __future__ import annotations

import asyncio

import pytest
from long_sleeps import LONG_S, long_sleeps
from people import PASSWORD, add_user

from tidegate.broker.node import Node
from tidegate.client.address import Credentials
from tidegate.client.client import Client
from tidegate.console import sessions as bounds
from tidegate.console.sessions import LoginSessions
from tidegate.core.errors import LimitReached, NotAuthenticated
from tidegate.core.model import Grant, Right


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Closing:
    """Of one user the connections take their time to close."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()

    def sessions(self, node: Node, clock: Clock) -> LoginSessions:
        closing = self

        class SlowToClose(Client):
            async def close(self) -> None:
                closing.begun.set()
                await closing.goes_on.wait()
                await super().close()

        def connect(credentials: Credentials | None) -> Client:
            is_slow = credentials is not None and credentials.user == closing.user
            kind = SlowToClose if is_slow else Client
            return kind(node.address, mode="admin", reconnect_s=20.0, credentials=credentials)

        return LoginSessions(connect, None, clock)


def _sessions(node: Node, clock: Clock) -> LoginSessions:
    def connect(credentials: Credentials | None) -> Client:
        return Client(node.address, mode="admin", reconnect_s=20.0, credentials=credentials)

    return LoginSessions(connect, None, clock)


async def test_a_session_ends_when_it_is_idle_and_when_it_is_old(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    clock = Clock()
    sessions = _sessions(node, clock)
    secret, session = await sessions.log_in("ann", PASSWORD, "here")
    clock.now += bounds.IDLE_S - 1.0
    assert sessions.session(secret) is session
    clock.now += bounds.IDLE_S + 1.0
    assert sessions.session(secret) is None
    secret, _ = await sessions.log_in("ann", PASSWORD, "here")
    for _ in range(int(bounds.LIFE_S / bounds.IDLE_S) + 2):
        clock.now += bounds.IDLE_S - 1.0
        sessions.session(secret)
    assert sessions.session(secret) is None
    await sessions.close()


async def test_a_user_has_so_many_sessions_and_the_oldest_go(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SESSIONS_PER_USER_MAX", 2)
    await add_user(node, "ann", admin="*")
    clock = Clock()
    sessions = _sessions(node, clock)
    secrets = []
    for _ in range(3):
        clock.now += 1.0
        secrets.append((await sessions.log_in("ann", PASSWORD, "here"))[0])
    assert [sessions.session(one) is not None for one in secrets] == [False, True, True]
    await sessions.close()


async def test_password_guesses_block_the_address_and_not_the_user(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "GUESSES_MAX", 2)
    monkeypatch.setattr(bounds, "GUESSES_OF_ADDRESS_MAX", 3)
    monkeypatch.setattr(bounds, "REFUSAL_S", 0.0)
    monkeypatch.setattr(bounds, "GUESSED_AT_S", 0.0)
    await add_user(node, "ann", admin="*")
    clock = Clock()
    sessions = _sessions(node, clock)
    for guess in ("a", "b"):
        with pytest.raises(NotAuthenticated):
            await sessions.log_in("ann", guess, "there")
    with pytest.raises(LimitReached, match="from here"):
        await sessions.log_in("ann", PASSWORD, "there")
    # From elsewhere she comes in, and from there whoever is not guessed at.
    await sessions.log_in("ann", PASSWORD, "here")
    with pytest.raises(NotAuthenticated):
        await sessions.log_in("bob", "c", "there")
    with pytest.raises(LimitReached):
        await sessions.log_in("eve", "d", "there")
    clock.now += bounds.GUESSES_S + 1.0
    await sessions.log_in("ann", PASSWORD, "there")
    await sessions.close()


async def test_whom_everybody_guesses_at_waits_a_little_and_comes_in(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "GUESSES_MAX", 2)
    monkeypatch.setattr(bounds, "REFUSAL_S", 0.0)
    monkeypatch.setattr(bounds, "GUESSED_AT_S", LONG_S)
    slept_s = long_sleeps(monkeypatch)
    await add_user(node, "ann", admin="*")
    sessions = _sessions(node, Clock())
    for place in ("a", "b", "c"):
        with pytest.raises(NotAuthenticated):
            await sessions.log_in("ann", "guess", place)
    slept_s.clear()
    await sessions.log_in("ann", PASSWORD, "here")
    assert slept_s == [LONG_S]
    await sessions.close()


async def test_other_rights_count_from_the_next_request_on(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    clock = Clock()
    sessions = _sessions(node, clock)
    _, session = await sessions.log_in("ann", PASSWORD, "here")
    assert session.person.is_admin

    await node.store.set_user_grants("ann", [Grant(Right.READ, "orders")])
    await node.accounts.refresh()
    # Whatever is asked next goes over a new connection.
    await session.person.client.members()
    await session.person.refresh()

    assert session.person.read_only
    assert not session.person.is_admin
    await sessions.close()


async def test_the_connection_of_a_user_ends_with_the_last_session(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    sessions = _sessions(node, Clock())
    before = len(node.sessions)
    first, _ = await sessions.log_in("ann", PASSWORD, "here")
    second, session = await sessions.log_in("ann", PASSWORD, "here")
    await sessions.log_out(first)
    assert (await session.person.client.ping()) >= 0.0
    await sessions.log_out(second)
    assert session.person.client.outage is not None
    await sessions.close()
    assert len(node.sessions) <= before + 1


async def test_login_during_the_tidying_keeps_its_session(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    await add_user(node, "ben", admin="*")
    clock, closing = Clock(), Closing("ann")
    sessions = closing.sessions(node, clock)
    for user in ("ann", "ben"):
        await sessions.log_in(user, PASSWORD, "here")
    clock.now += bounds.IDLE_S + 1.0

    tidying = asyncio.create_task(sessions.tidy())
    await closing.begun.wait()
    secret, session = await sessions.log_in("ben", PASSWORD, "here")
    closing.goes_on.set()
    await tidying

    assert sessions.session(secret) is session
    assert await session.person.client.ping() >= 0.0
    await sessions.close()


async def test_two_first_logins_of_a_user_are_of_one_person(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    await add_user(node, "ben", admin="*")
    clock, closing = Clock(), Closing("ann")
    sessions = closing.sessions(node, clock)
    await sessions.log_in("ann", PASSWORD, "here")
    clock.now += bounds.IDLE_S + 1.0

    # The first is held up by who is tidied away, the second finds nobody to tidy.
    first = asyncio.create_task(sessions.log_in("ben", PASSWORD, "here"))
    await closing.begun.wait()
    _, second = await sessions.log_in("ben", PASSWORD, "here")
    closing.goes_on.set()

    assert (await first)[1].person is second.person
    assert await second.person.client.ping() >= 0.0
    await sessions.close()
