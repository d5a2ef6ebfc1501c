"""Sessions stay with their server, servers drain, and what is behind the gateway changes live."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from bookshop import bookshops
from http_client import Answer, Connection, ask
from waiting import eventually_async

from tidegate.core.errors import InvalidValue
from tidegate.gateway.gateway import Gateway
from tidegate.gateway.http1 import StickySessions, without_sticky
from tidegate.gateway.servers import ServerAddress

SECRET = b"a secret of the tests"
SESSIONS_S = 600.0


async def _in_session(port: int, cookie: str | None, target: str = "/") -> tuple[Answer, str]:
    headers = {"Cookie": f"basket=7; {cookie}"} if cookie else {}
    async with await Connection.to(port) as client:
        answer = await client.ask(target, headers=headers)
    given = answer.headers.get("set-cookie", cookie or "")
    return answer, given.partition(";")[0]


async def test_a_session_stays_with_its_server_through_either_gateway() -> None:
    async with bookshops("a", "b", "c") as shops:
        addresses = [one.address for one in shops]
        first = Gateway(addresses, "random", sessions=StickySessions(SECRET))
        second = Gateway(addresses, "random", sessions=StickySessions(SECRET))
        async with first, second:
            homes = set()
            for _ in range(12):
                answer, cookie = await _in_session(first.port, None)
                homes.add(answer.body)
                assert "HttpOnly" in answer.headers["set-cookie"]
                for port in (first.port, second.port, first.port):
                    again, same = await _in_session(port, cookie)
                    assert again.body == answer.body
                    assert same == cookie
                    assert "set-cookie" not in again.headers
            assert len(homes) > 1
        # The application sees its own cookies only.
        assert {one.get("cookie") for shop in shops for one in shop.app.headers} == {
            None,
            "basket=7",
        }


async def test_a_session_whose_server_died_is_elected_anew_and_stays_there() -> None:
    async with bookshops("kept", "kept too") as shops:
        dead = ServerAddress("dead", "127.0.0.1", 1)
        sessions = StickySessions(SECRET)
        sessions.know("dead")
        cookie = sessions.cookie("dead", 0.0)
        addresses = [dead, *(one.address for one in shops)]
        async with Gateway(addresses, "random", sessions=StickySessions(SECRET)) as gateway:
            # Too old a cookie is none; a fresh one leads to the dead server first.
            _, new = await _in_session(gateway.port, cookie.decode().partition(";")[0])
            assert new
            fresh = sessions.cookie("dead", time.time()).decode().partition(";")[0]
            answer, moved = await _in_session(gateway.port, fresh)
            assert answer.status == 200
            assert moved != fresh
            for _ in range(5):
                again, same = await _in_session(gateway.port, moved)
                assert (again.body, same) == (answer.body, moved)


def test_a_cookie_that_was_tampered_with_counts_as_none() -> None:
    sessions = StickySessions(SECRET, max_age_s=100)
    sessions.know("a")
    sessions.know("b")
    cookie = sessions.cookie("a", 1000.0).partition(b";")[0]
    assert b"=a" not in cookie
    assert sessions.server([b"x=y; " + cookie], 1050.0) == "a"
    assert sessions.server([cookie], 1101.0) is None
    other = StickySessions(b"another secret of the tests")
    other.know("a")
    assert other.server([cookie], 1050.0) is None
    for position in range(len(b"StickyHost="), len(cookie)):
        forged = bytearray(cookie)
        forged[position] ^= 1
        assert sessions.server([bytes(forged)], 1050.0) is None
    # A forged one before it does not shadow ours.
    assert sessions.server([b"StickyHost=forged; " + cookie], 1050.0) == "a"
    sessions.remove("a")
    assert sessions.server([cookie], 1050.0) is None
    assert without_sticky([b"x=y; " + cookie + b"; z=1", cookie]) == b"x=y; z=1"
    with pytest.raises(InvalidValue, match="at least 16"):
        StickySessions(b"short")


async def test_a_draining_server_answers_what_it_has_and_gets_nothing_new() -> None:
    async with (
        bookshops("a", "b") as shops,
        Gateway([one.address for one in shops], "round-robin") as gateway,
    ):
        slow = [asyncio.create_task(ask(gateway.port, "/hang")) for _ in range(2)]
        for one in shops:
            await asyncio.wait_for(one.app.arrived.wait(), 60)
        draining = asyncio.create_task(gateway.drain("a"))
        await asyncio.sleep(0)
        assert {(await ask(gateway.port)).body for _ in range(6)} == {b"b"}
        assert not draining.done()
        for one in shops:
            one.app.go_on.set()
        assert await draining == 0
        assert {(await one).status for one in slow} == {200}


async def test_a_drain_that_takes_too_long_cuts_off_and_says_how_many() -> None:
    async with (
        bookshops("a", "b") as shops,
        Gateway([one.address for one in shops], "round-robin") as gateway,
    ):
        slow = asyncio.create_task(ask(gateway.port, "/hang"))
        await asyncio.wait_for(shops[0].app.arrived.wait(), 60)
        assert await gateway.remove("a", timeout_s=0.05) == 1
        assert (await slow).status == 503
        assert [one.name for one in gateway.servers] == ["b"]


async def test_sessions_of_a_draining_server_go_on_there_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The timer of the drain ends when the test says so. The clock does not move with it: a real
    # timer is up to two milliseconds early, and no session may come in that time either.
    over, sleep = asyncio.Event(), asyncio.sleep

    async def sleeps(delay: float) -> None:
        if delay == SESSIONS_S:
            await over.wait()
        else:
            await sleep(delay)  # as the product said

    monkeypatch.setattr(asyncio, "sleep", sleeps)
    async with bookshops("a", "b") as shops:
        sessions = StickySessions(SECRET)
        addresses = [one.address for one in shops]
        async with Gateway(addresses, "round-robin", sessions=sessions) as gateway:
            answer, cookie = await _in_session(gateway.port, None)
            assert answer.body == b"a"
            draining = asyncio.create_task(gateway.drain("a", sessions_s=SESSIONS_S))
            await asyncio.sleep(0)
            assert (await _in_session(gateway.port, cookie))[0].body == b"a"
            assert (await _in_session(gateway.port, None))[0].body == b"b"
            over.set()
            assert await draining == 0
            moved, new = await _in_session(gateway.port, cookie)
            assert moved.body == b"b"
            assert new != cookie


async def test_servers_come_and_go_and_weights_change_under_load_without_a_failure() -> None:
    async with bookshops("a", "b", "c") as shops:
        a, b, c = (one.address for one in shops)
        statuses: Counter[int] = Counter()
        over = asyncio.Event()
        async with Gateway([a], "round-robin") as gateway:

            async def client() -> None:
                async with await Connection.to(gateway.port) as connection:
                    while not over.is_set():
                        statuses[(await connection.ask("/", "POST", b"x")).status] += 1

            load = [asyncio.create_task(client()) for _ in range(5)]

            async def served(name: str) -> bool:
                return any(
                    one.name == name and one.meters.answered.total for one in gateway.servers
                )

            for wanted in ([a, b], [b, c], [c], [a, c]):
                gateway.set_servers(wanted)
                for one in wanted:
                    await eventually_async(lambda name=one.name: served(name), "all get requests")
            gateway.set_weight("a", 0.0)
            (weightless,) = (one for one in gateway.servers if one.name == "a")
            # A request that was on its way to it when its weight changed gets there.
            await weightless.wait_idle()
            sent = weightless.meters.sent.total
            for _ in range(50):
                assert (await ask(gateway.port)).body == b"c"
            assert weightless.meters.sent.total == sent
            over.set()
            await asyncio.gather(*load)
        assert statuses.keys() == {200}


async def test_stopping_answers_what_is_here_and_takes_nothing_new() -> None:
    async with bookshops("a") as (shop,):
        gateway = Gateway([shop.address])
        await gateway.start()
        port = gateway.port
        idle = await Connection.to(port)
        await idle.ask("/")
        slow = asyncio.create_task(ask(port, "/hang"))
        await asyncio.wait_for(shop.app.arrived.wait(), 60)
        stopping = asyncio.create_task(gateway.stop())
        assert await asyncio.wait_for(idle.reader.read(), 60) == b""
        idle.writer.close()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await ask(port)
        shop.app.go_on.set()
        answer = await slow
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await stopping == 0
