"""Both engines keep what the port promises (core/services.py), before real servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import h11
import pytest
import websockets
from bookshop import PART, bookshops
from door_under_test import OpenDoor
from http_client import Answer, Connection, ask, raw
from stall import Stall, stalls
from waiting import eventually_async

from tidegate.control.services import measurement
from tidegate.core.errors import Unavailable
from tidegate.core.services import (
    HEALTH_ANSWER_S,
    PROBE_HEADER,
    Backend,
    Door,
    DoorSample,
    Durations,
    Engine,
    probe_mark,
)
from tidegate.doors import DoorSettings

SECRET = b"a secret of the tests of doors"


def port_of(door: Door) -> int:
    return int(door.address.rpartition(":")[2])


async def sampled(door: Door, what: str, **wanted: object) -> DoorSample:
    """The first sample that says so."""

    sample = await door.sample()

    async def look() -> bool:
        nonlocal sample
        sample = await door.sample()
        return all(getattr(sample, name) == value for name, value in wanted.items())

    await eventually_async(look, f"{what}; at last {sample}")
    return sample


async def held(
    door: Door, stall: Stall, count: int, path: str = "/held"
) -> list[asyncio.Task[Answer]]:
    """So many requests, one behind the other, that the server does not answer."""
    stall.gate.clear()
    before = (await door.sample()).in_flight
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(ask(port_of(door), f"/held/{number}")))
        await sampled(door, "it is there", in_flight=before + number + 1)
    return tasks


async def busy(stall: Stall, count: int) -> None:
    async def look() -> bool:
        return stall.busy == count

    await eventually_async(look, f"it has {count} requests")


async def test_requests_follow_the_weights_and_a_spare_gets_none(open_door: OpenDoor) -> None:
    async with stalls(3) as (one, two, spare):
        door = await open_door(balancing="round-robin")
        await door.set_backends([one.backend(3.0), two.backend(1.0), spare.backend(0.0)])
        async with await Connection.to(port_of(door)) as client:
            seen = Counter([(await client.ask()).body for _ in range(80)])
            assert seen[b"i1"] == pytest.approx(60, abs=3)
            assert seen[b"i2"] == 80 - seen[b"i1"]
            # It is called up, and the others rest.
            await door.set_backends([one.backend(0.0), two.backend(0.0), spare.backend(1.0)])
            assert {(await client.ask()).body for _ in range(10)} == {b"i3"}


async def test_no_server_has_more_than_its_concurrency_and_who_waits_is_served_in_order(
    open_door: OpenDoor,
) -> None:
    async with stalls(1) as (stall,):
        door = await open_door()
        await door.set_backends([stall.backend(concurrency=2)])
        tasks = await held(door, stall, 9)
        sample = await sampled(door, "seven wait", waiting=7, in_flight=9)
        assert [one.outstanding for one in sample.instances] == [2]
        # More may go in as soon as the leader says so.
        await door.set_backends([stall.backend(concurrency=4)])
        await sampled(door, "five wait", waiting=5)
        await busy(stall, 4)
        stall.gate.set()
        assert {one.status for one in await asyncio.gather(*tasks)} == {200}
        assert stall.busiest == 4
        # Nobody is overtaken but by those who are let in at the same moment.
        order = [int(path.removeprefix("/held/")) for path in stall.paths]
        assert all(abs(place - number) < 4 for place, number in enumerate(order)), order
        await sampled(door, "all are answered", answered=9, waiting=0, in_flight=0)


async def test_request_gets_503_after_the_longest_wait(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door(wait_s=0.3)
        await door.set_backends([stall.backend(concurrency=1)])
        (first,) = await held(door, stall, 1)
        answers = await asyncio.gather(*(ask(port_of(door)) for _ in range(2)))
        assert [(one.status, one.headers["retry-after"]) for one in answers] == [(503, "1")] * 2
        assert not first.done()
        stall.gate.set()
        assert (await first).status == 200
        sample = await sampled(door, "it is answered", answered=1)
        assert (sample.accepted, sample.refused) == (3, 2)
        assert stall.paths == ["/held/0"]


async def test_request_gets_503_at_once_when_the_wait_queue_is_full(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door(wait_s=600.0, waiting_max=2)
        await door.set_backends([stall.backend(concurrency=1)])
        tasks = await held(door, stall, 3)
        await sampled(door, "the line is full", waiting=2)
        beyond = await ask(port_of(door))
        assert (beyond.status, beyond.headers["retry-after"]) == (503, "1")
        stall.gate.set()
        assert {one.status for one in await asyncio.gather(*tasks)} == {200}
        sample = await sampled(door, "three are answered", answered=3)
        assert (sample.accepted, sample.refused) == (4, 1)


async def test_a_client_that_hangs_up_leaves_the_line(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door(wait_s=30.0)
        await door.set_backends([stall.backend(concurrency=1)])
        tasks = await held(door, stall, 3)
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(door))
        writer.write(b"POST /left HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nabcd")
        await sampled(door, "three wait", waiting=3)
        writer.close()
        tasks[1].cancel()
        await sampled(door, "two have left", waiting=1)
        stall.gate.set()
        await asyncio.gather(tasks[0], tasks[2])
        assert stall.paths == ["/held/0", "/held/2"]


async def test_admission_sheds_what_is_beyond_it_and_nothing_else(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door()
        await door.set_backends([stall.backend()])
        await door.set_admission(2)
        tasks = await held(door, stall, 2)
        shed = await ask(port_of(door))
        assert (shed.status, shed.headers["retry-after"]) == (503, "1")
        await door.set_admission(3)
        assert (await ask(port_of(door))).status == 200
        await door.set_admission(None)
        stall.gate.set()
        assert {one.status for one in await asyncio.gather(*tasks)} == {200}
        sample = await sampled(door, "three are answered", answered=3)
        assert sample.refused == 1


class Load:
    """Clients that ask and ask, and what they get."""

    def __init__(self, door: Door, clients: int, path: str = "/slow/3") -> None:
        self.statuses: Counter[int] = Counter()
        # By method: those without an answer of a server.
        self.broken_off: Counter[str] = Counter()
        self.seconds: list[float] = []
        # By client: answers with a status below 500.
        self._answered: Counter[int] = Counter()
        self._over = asyncio.Event()
        self._path = path
        self._tasks = [asyncio.create_task(self._ask(port_of(door), n)) for n in range(clients)]

    async def _ask(self, port: int, number: int) -> None:
        method = "POST" if number % 2 else "GET"
        clock = asyncio.get_running_loop().time
        while not self._over.is_set():
            async with await Connection.to(port) as connection:
                closed = False
                while not closed and not self._over.is_set():
                    began = clock()
                    try:
                        answer = await connection.ask(self._path, method, b"x" * (number % 2))
                    except (OSError, h11.RemoteProtocolError):
                        self.broken_off[method] += 1
                        break
                    self.seconds.append(clock() - began)
                    self.statuses[answer.status] += 1
                    if answer.status >= 500:
                        self.broken_off[method] += 1
                    else:
                        self._answered[number] += 1
                    closed = answer.headers.get("connection") == "close"

    async def answered_each(self) -> None:
        """Until each client has got an answer from now on."""
        before = self._answered.copy()

        async def look() -> bool:
            return all(self._answered[n] > before[n] for n in range(len(self._tasks)))

        await eventually_async(look, "each client is answered")

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)


async def served(*shops: Stall) -> None:
    """Until each of them has got something from now on."""
    before = [len(one.requests) for one in shops]

    async def look() -> bool:
        return all(len(one.requests) > was for one, was in zip(shops, before, strict=True))

    await eventually_async(look, "all get requests")


async def test_servers_come_drain_and_go_under_load_without_a_failed_request(
    open_door: OpenDoor,
) -> None:
    async with stalls(3) as (one, two, three):
        door = await open_door()
        await door.set_backends([one.backend(concurrency=2)])
        load = Load(door, 6)
        await served(one)
        await door.set_backends([one.backend(concurrency=2), two.backend(concurrency=5)])
        await served(one, two)
        await door.set_backends([one.backend(draining=True), two.backend(), three.backend()])
        sample = await door.sample()
        assert {instance.instance_id for instance in sample.instances} == {1, 2, 3}

        async def drained() -> bool:
            # The door's word: a request may be on its way that the server has not seen yet.
            instances = (await door.sample()).instances
            return not any(i.outstanding for i in instances if i.instance_id == 1)

        await eventually_async(drained, "it has answered what it had")
        answered = len(one.requests)
        await served(two, three)
        await door.set_backends([two.backend(), three.backend()])
        one.die()
        await served(two, three)
        await door.set_backends([three.backend()])
        await served(three)
        assert len(one.requests) == answered
        await load.end()
        assert load.statuses.keys() == {200}
        assert not load.broken_off
        total = load.statuses.total()
        sample = await sampled(door, "all are counted", answered=total, accepted=total, in_flight=0)
        assert sample.refused == 0


async def in_session(door: Door, cookie: str) -> tuple[bytes, str]:
    async with await Connection.to(port_of(door)) as client:
        answer = await client.ask(headers={"Cookie": f"basket=7; {cookie}"} if cookie else {})
    assert answer.status == 200
    given = answer.headers.get("set-cookie", cookie)
    return answer.body, given.partition(";")[0]


async def test_sessions_go_on_through_the_other_door_when_one_dies(open_door: OpenDoor) -> None:
    # Names so long that no signature has one of them in it by chance, as it may have `i1`.
    async with stalls(3, first=70_000_001) as shops:
        backends = [one.backend() for one in shops]
        doors = [await open_door(session_secret=SECRET) for _ in range(2)]
        # One is told of them before the other, and in another order.
        await doors[0].set_backends(backends[:1])
        await doors[0].set_backends(backends)
        await doors[1].set_backends(backends[::-1])
        homes = [await in_session(doors[0], "") for _ in range(12)]
        assert len({home for home, _ in homes}) > 1
        for home, cookie in homes:
            assert cookie.startswith("StickyHost=")
            assert "127.0.0.1" not in cookie
            assert home.decode() not in cookie
            assert await in_session(doors[1], cookie) == (home, cookie)
        await doors[0].stop(timeout_s=0.0)
        for home, cookie in homes:
            assert await in_session(doors[1], cookie) == (home, cookie)
        # Servers see the application's cookies only.
        fields = {value for one in shops for h in one.headers for k, value in h if k == "cookie"}
        assert fields == {"basket=7"}
        # Whose server drains is elected anew, once.
        gone = homes[0][0]
        await doors[1].set_backends(
            [one.backend(draining=one.name.encode() == gone) for one in shops]
        )
        moved, new = await in_session(doors[1], homes[0][1])
        assert moved != gone
        assert await in_session(doors[1], new) == (moved, new)


def letting_go(shops: Sequence[Stall], home: bytes, until: float) -> list[Backend]:
    """One of them drains, and keeps its sessions until then."""
    return [
        one.backend(concurrency=1, draining=True, sessions_until=until)
        if one.name.encode() == home
        else one.backend(concurrency=1)
        for one in shops
    ]


async def test_sessions_stay_with_a_server_that_drains_until_their_grace_is_over(
    open_door: OpenDoor,
) -> None:
    async with stalls(2) as shops:
        door = await open_door(session_secret=SECRET)
        await door.set_backends([one.backend(concurrency=1) for one in shops])
        home, cookie = await in_session(door, "")
        await door.set_backends(letting_go(shops, home, time.time() + 600.0))
        for _ in range(5):
            assert await in_session(door, cookie) == (home, cookie)
            assert (await in_session(door, ""))[0] != home
        # Its time comes, and nobody says anything.
        await door.set_backends(letting_go(shops, home, time.time() + 0.5))

        async def elected_anew() -> tuple[bytes, str] | None:
            found = await in_session(door, cookie)
            return found if found[0] != home else None

        elsewhere = await eventually_async(elected_anew, "its session has moved")
        assert await in_session(door, elsewhere[1]) == elsewhere
        # It is called back, and new sessions with it.
        await door.set_backends([one.backend(concurrency=1) for one in shops])
        (back,) = (one for one in shops if one.name.encode() == home)
        await in_session_until(door, back)
        assert (await in_session(door, cookie))[0] == home


async def test_request_waiting_for_a_draining_server_stays_with_it(
    open_door: OpenDoor,
) -> None:
    async with stalls(2) as shops:
        door = await open_door(session_secret=SECRET, wait_s=30.0)
        await door.set_backends([one.backend(concurrency=1) for one in shops])
        home, cookie = await in_session(door, "")
        (keeps,) = (one for one in shops if one.name.encode() == home)
        keeps.gate.clear()

        async def held_there() -> Answer:
            async with await Connection.to(port_of(door)) as client:
                return await client.ask("/held", headers={"Cookie": cookie})

        asked = [asyncio.create_task(held_there()) for _ in range(3)]
        await sampled(door, "two wait", waiting=2)
        await door.set_backends(letting_go(shops, home, time.time() + 600.0))
        assert (await in_session(door, ""))[0] != home
        keeps.gate.set()
        assert {one.body for one in await asyncio.gather(*asked)} == {home}


async def test_a_session_waits_for_its_own_server_and_keeps_nobody_else_waiting(
    open_door: OpenDoor,
) -> None:
    async with stalls(2) as shops:
        door = await open_door(session_secret=SECRET, wait_s=30.0)
        backends = [one.backend(concurrency=1) for one in shops]
        await door.set_backends(backends)
        name, cookie = await in_session(door, "")
        home, other = sorted(shops, key=lambda one: one.name.encode() != name)
        await in_session_until(door, other)
        home.gate.clear()

        async def held_there() -> Answer:
            async with await Connection.to(port_of(door)) as client:
                return await client.ask("/held", headers={"Cookie": cookie})

        waiting = [asyncio.create_task(held_there()) for _ in range(3)]
        await sampled(door, "two of the session wait", waiting=2)
        # Those without a session go where there is room.
        assert [(await in_session(door, ""))[0] for _ in range(3)] == [other.name.encode()] * 3
        assert not any(one.done() for one in waiting)
        # Its server is to go: who waits for it is elected anew, who is served is served.
        await door.set_backends([one.backend(1.0, 1, draining=one is home) for one in shops])
        await sampled(door, "nobody waits for it any more", waiting=0)
        home.gate.set()
        answers = await asyncio.gather(*waiting)
        assert [one.status for one in answers] == [200] * 3
        assert sorted(one.body for one in answers) == sorted(
            [home.name.encode(), other.name.encode(), other.name.encode()]
        )


async def in_session_until(door: Door, wanted: Stall) -> None:
    async def look() -> bool:
        return (await in_session(door, ""))[0] == wanted.name.encode()

    await eventually_async(look, "the other one is used, too")


async def test_a_head_or_body_beyond_its_bound_is_refused(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door(body_bytes_max=1000)
        await door.set_backends([stall.backend()])
        async with await Connection.to(port_of(door)) as client:
            answer = await client.ask(headers={"X-Long": "x" * 14_000})
            assert answer.status == 200
        async with await Connection.to(port_of(door)) as client:
            answer = await client.ask(headers={"X-Long": "x" * 20_000})
            assert answer.status in (400, 431)
        assert (await ask(port_of(door), "/", "POST", b"x" * 1001)).status == 413
        assert (await ask(port_of(door), "/", "POST", b"x" * 1000)).status == 200
        assert len(stall.requests) == 2


async def test_a_dead_server_fails_no_get_and_is_said_to_be_out(open_door: OpenDoor) -> None:
    async with stalls(2) as (dead, alive):
        door = await open_door()
        await door.set_backends([dead.backend(), alive.backend()])
        load = Load(door, 4)
        await served(dead, alive)
        dead.die()

        async def out() -> str | None:
            sample = await door.sample()
            assert not sample.trouble
            return next(one.ejected for one in sample.instances if one.instance_id == 1)

        assert await eventually_async(out, "it is out")
        await served(alive)
        await load.end()
        # A POST that was under way may have been lost, and is not sent again; a GET is.
        assert load.broken_off["GET"] == 0
        assert load.broken_off["POST"] <= 2
        # It comes back where it was.
        before = len(dead.requests)
        await dead.start(dead.port)

        async def back() -> bool:
            assert (await ask(port_of(door))).status == 200
            return len(dead.requests) > before

        await eventually_async(back, "it is used again")


async def test_a_spare_serves_while_nobody_else_can_and_one_that_drains_does_not(
    open_door: OpenDoor, engine: Engine
) -> None:
    async with stalls(3) as (serving, spare, leaving):
        door = await open_door()
        drains = leaving.backend(0.0, draining=True, sessions_until=time.time() + 600.0)
        await door.set_backends([serving.backend(), spare.backend(0.0), drains])
        load = Load(door, 4)
        await served(serving)
        assert not spare.requests
        serving.die()
        await served(spare)
        await load.answered_each()
        lost = load.broken_off.copy()
        await load.answered_each()
        await load.end()
        # HAProxy calls a server dead after three failed connections, and loses what it sends there
        # until then, but nothing later. The gateway loses only a POST that was under way.
        assert load.broken_off == lost
        if engine is Engine.GATEWAY:
            assert load.broken_off["GET"] == 0
            assert load.broken_off["POST"] <= 2
        assert {(await ask(port_of(door))).body for _ in range(5)} == {b"i2"}

        # The one that serves is back, and the spare has its rest.
        await serving.start(serving.port)

        async def is_back() -> bool:
            return (await ask(port_of(door))).body == b"i1"

        await eventually_async(is_back, "it is used again")
        assert {(await ask(port_of(door))).body for _ in range(5)} == {b"i1"}

        # Nobody else is there at all; then the spare is to go, too.
        await door.set_backends([spare.backend(0.0), drains])
        assert (await ask(port_of(door))).body == b"i2"
        sessions_until = time.time() + 600.0
        going = spare.backend(0.0, draining=True, sessions_until=sessions_until)
        await door.set_backends([going, drains])
        assert (await ask(port_of(door))).status == 503
        assert not leaving.requests


async def test_a_session_that_began_with_a_spare_stays_where_its_cookie_says(
    open_door: OpenDoor, engine: Engine
) -> None:
    async with stalls(2) as (serving, spare):
        door = await open_door(session_secret=SECRET)
        await door.set_backends([spare.backend(0.0)])
        home, cookie = await in_session(door, "")
        assert home == b"i2"
        # Whom HAProxy sends to a server by name it gives no cookie.
        assert bool(cookie) == (engine is Engine.GATEWAY)
        await door.set_backends([serving.backend(), spare.backend(0.0)])
        assert (await in_session(door, ""))[0] == b"i1"
        if cookie:
            assert await in_session(door, cookie) == (home, cookie)


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_request_on_a_closed_connection_is_retried_unless_post(
    open_door: OpenDoor, engine: Engine, how: str
) -> None:
    """A server hangs up on a connection that it kept, as the next request arrives there."""
    hung_up_on: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_answered = False
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if has_answered and b" /closing " in head:
                    hung_up_on.append(head.partition(b" ")[0])
                    break
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\ni9")
                has_answered = True
        getattr(writer.transport, how)()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, stalls(1) as (other,):
        door = await open_door(session_secret=SECRET)
        port = server.sockets[0].getsockname()[1]
        closing = Backend(instance_id=9, host="127.0.0.1", port=port)
        await door.set_backends([closing])
        home, cookie = await in_session(door, "")
        assert home == b"i9"
        # There is another one now that could take it; its session has it where it is.
        await door.set_backends([closing, other.backend()])

        async def asked(method: str, *before: str) -> int | None:
            async with await Connection.to(port_of(door)) as client:
                for path in (*before, "/closing"):
                    try:
                        is_last = path == "/closing"
                        answer = await client.ask(
                            path,
                            method if is_last else "GET",
                            b"money" if is_last and method == "POST" else b"",
                            {"Cookie": cookie},
                        )
                    except (OSError, h11.RemoteProtocolError):
                        return None
            return answer.status

        assert await asked("POST") == 502
        assert await asked("GET", "/kept") == 200
        # A client that has had an answer is hung up on by HAProxy: it is to ask again, or not.
        assert await asked("POST", "/kept") == (502 if engine is Engine.GATEWAY else None)
        assert hung_up_on == [b"POST", b"GET", b"POST"]
        assert ("POST", "/closing") not in other.requests


async def test_a_post_is_never_sent_twice_and_a_get_is(open_door: OpenDoor) -> None:
    async with stalls(2) as (breaking, well):
        breaking.breaks = True
        door = await open_door(balancing="round-robin")
        await door.set_backends([breaking.backend(), well.backend()])
        lost = 0
        for number in range(8):
            try:
                answer = await ask(port_of(door), f"/post/{number}", "POST", b"money")
                lost += answer.status != 200
            except (OSError, h11.RemoteProtocolError):
                lost += 1
            assert (await ask(port_of(door), f"/get/{number}")).status == 200
        seen = Counter(breaking.requests + well.requests)
        assert all(seen["POST", f"/post/{number}"] == 1 for number in range(8))
        # Of what was broken off nobody knows what became, and its client is told so.
        assert lost == sum(method == "POST" for method, _ in breaking.requests) > 0
        sample = await door.sample()
        assert sample.answered == 16 - lost


async def test_streams_and_websockets_pass_through(open_door: OpenDoor) -> None:
    async with bookshops("a") as (shop,):
        door = await open_door()
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=shop.port)])
        async with websockets.connect(f"ws://127.0.0.1:{port_of(door)}/talk") as talk:
            for word in ("one", "two"):
                await talk.send(word)
                assert await talk.recv() == word
        answer = await ask(port_of(door), "/large/100")
        assert answer.body == PART * 100
        assert (await ask(port_of(door), "/length", "PUT", b"x" * 300_000)).body == b"300000"


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 6"])
async def test_a_body_is_streamed_both_ways_at_once(open_door: OpenDoor, framing: str) -> None:
    """What is echoed comes back before the request has ended: no door waits for a whole body."""
    async with bookshops("a") as (shop,):
        door = await open_door()
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=shop.port)])
        async with await Connection.to(port_of(door)) as client, asyncio.timeout(60):
            head = f"POST /echo HTTP/1.1\r\nHost: shop\r\n{framing}\r\n\r\n"
            client.writer.write(head.encode())
            for word in (b"one", b"two"):
                chunked = b"%x\r\n%b\r\n" % (len(word), word)
                client.writer.write(chunked if "chunked" in framing else word)
                await client.reader.readuntil(word)


# A histogram gives the upper end of a bucket.
INEXACT = 1.25


def percentile(durations: Durations, fraction: float) -> float:
    total = sum(count for _, count in durations)
    seen = 0
    for up_to_s, count in durations:
        seen += count
        if seen >= fraction * total:
            return up_to_s
    raise AssertionError("there are no durations")


async def test_samples_add_up_to_what_clients_saw(open_door: OpenDoor) -> None:
    async with stalls(2) as (one, two):
        door = await open_door()
        assert not (await door.sample()).has_begun
        await door.set_backends([one.backend(concurrency=2), two.backend(concurrency=2)])
        # Twice as many as are served at a time: half of what they see is waiting.
        load = Load(door, 8, "/slow/20")
        await served(one, two)
        samples = [await door.sample()]
        while load.statuses.total() < 150:
            await served(one, two)
            samples.append(await door.sample())
        await load.end()
        assert (await ask(port_of(door), "/error")).status == 500
        total = load.statuses.total() + 1
        sample = await sampled(door, "all are counted", answered=total, in_flight=0)
        for earlier, later in pairwise([*samples, sample]):
            assert later.door == earlier.door
            assert later.accepted >= earlier.accepted
            assert later.answered >= earlier.answered
        assert (sample.accepted, sample.refused) == (total, 0)
        assert sum(count for _, count in sample.response) == total
        assert sum(instance.answered for instance in sample.instances) == total
        assert sum(instance.server_errors for instance in sample.instances) == 1
        assert sample.by_class == {"2xx": total - 1, "5xx": 1}
        await door.set_backends([])
        assert (await door.sample()).has_begun
        assert {i.instance_id: i.answered for i in sample.instances} == {
            1: len(one.requests),
            2: len(two.requests),
        }
        # The time that a client sees contains the door's, and that contains the server's 20 ms.
        seen = sorted(load.seconds)
        for fraction in (0.5, 0.9):
            theirs = seen[int(fraction * len(seen))]
            assert 0.019 < percentile(sample.response, fraction) < INEXACT * theirs + 0.002
        for instance in sample.instances:
            assert percentile(instance.response, 0.5) > 0.019


async def test_waiting_in_line_is_time_of_the_door_and_not_of_the_server(
    open_door: OpenDoor,
) -> None:
    async with stalls(1) as (stall,):
        door = await open_door(wait_s=60.0)
        await door.set_backends([stall.backend(concurrency=1)])
        tasks = await held(door, stall, 2)
        await sampled(door, "one waits", waiting=1)
        await asyncio.sleep(0.3)  # how long the second one waits in line, at the least
        opened_at = time.monotonic()
        stall.gate.set()
        assert {one.status for one in await asyncio.gather(*tasks)} == {200}
        since_opened_s = time.monotonic() - opened_at
        sample = await sampled(door, "both are answered", answered=2, in_flight=0)
        assert percentile(sample.response, 0.5) > 0.29
        # Of the two, the second one came to the server when that answered at once.
        (instance,) = sample.instances
        assert percentile(instance.response, 0.5) < INEXACT * since_opened_s + 0.002


async def test_probes_reach_the_application_and_count_nowhere(open_door: OpenDoor) -> None:
    mark = probe_mark("a secret of the tests")
    door = await open_door(probe_mark=mark.encode())
    # Without a server they are refused, as anybody is.
    assert (await measurement.probe_door(door.address, "/", mark)).status == 503
    async with stalls(1) as (one,):
        await door.set_backends([one.backend()])
        assert (await measurement.probe_door(door.address, "/", mark)).status == 200
        assert (await measurement.probe_door(door.address, "/error", mark)).status == 500
        one.breaks = True
        assert (await measurement.probe_door(door.address, "/", mark)).status == 502
        one.breaks = False
        # Who does not know the secret counts, whatever it says.
        async with await Connection.to(port_of(door)) as client:
            for said in ("0" * len(mark), mark[:-1], mark.upper(), ""):
                assert (await client.ask(headers={PROBE_HEADER: said})).status == 200
            assert (await client.ask()).status == 200
        # Nobody behind the door can learn the mark.
        assert PROBE_HEADER.lower() not in {name for fields in one.headers for name, _ in fields}
        sample = await sampled(door, "five are counted", accepted=5, answered=5, in_flight=0)
        assert (sample.refused, sample.by_class) == (0, {"2xx": 5})
        (instance,) = sample.instances
        assert (instance.answered, instance.server_errors) == (5, 0)
        for durations in (sample.response, instance.response):
            assert sum(count for _, count in durations) == 5


async def test_an_application_without_a_health_path_is_well_and_one_that_errs_is_not(
    open_door: OpenDoor,
) -> None:
    """Its machine takes one that answers 404 for ready: what a door thought ill would be shut."""
    checks, status = 0, 404

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        head = await reader.readuntil(b"\r\n\r\n")
        is_check = head.startswith(b"GET /well ")
        checks += is_check
        said = b"%d Said" % (status if is_check else 200)
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        door = await open_door()
        port = server.sockets[0].getsockname()[1]
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=port)])

        async def asked_often() -> bool:
            return checks >= 3

        await eventually_async(asked_often, "checks were answered")
        assert (await ask(port_of(door))).status == 200
        assert (await door.sample()).instances[0].ejected is None
        status = 503

        async def out() -> str | None:
            return (await door.sample()).instances[0].ejected

        assert await eventually_async(out, "it is out")


async def test_an_instance_that_its_machine_calls_ready_is_well_at_its_door(
    open_door: OpenDoor,
) -> None:
    async with stalls(2) as (one, two):
        # Slower than a second, and quicker than what machines wait for.
        path = f"/slow/{int(HEALTH_ANSWER_S * 525)}"
        door = await open_door(health_path=path)
        await door.set_backends([one.backend(), two.backend()])

        async def checked_often() -> bool:
            return min(one.paths.count(path), two.paths.count(path)) >= 3

        # Two that fail would eject it.
        await eventually_async(checked_often, "both have been checked twice, and are once more")
        sample = await door.sample()
        assert [one.ejected for one in sample.instances] == [None, None]


async def test_client_errors_do_not_count_as_refusals(
    open_door: OpenDoor,
) -> None:
    async with stalls(1) as (stall,):
        door = await open_door()
        await door.set_backends([stall.backend()])
        await raw(port_of(door), b"TRACE / HTTP/1.1\r\nHost: shop\r\n\r\n")
        hops = b", ".join(b"%x" % number for number in range(9))
        looping = b"GET / HTTP/1.1\r\nHost: shop\r\nLoadBalanced: %b\r\n\r\n" % hops
        assert b" 508 " in await raw(port_of(door), looping)
        assert (await ask(port_of(door))).status == 200

        async def look() -> DoorSample | None:
            sample = await door.sample()
            return sample if sample.by_class == {"2xx": 1, "5xx": 2} else None

        sample = await eventually_async(look, "all three are counted")
        assert (sample.answered, sample.refused) == (1, 0)


async def test_requests_that_nobody_answers_are_told_of_while_they_wait(
    open_door: OpenDoor,
) -> None:
    mark = probe_mark("a secret of the tests")
    async with stalls(1) as (stall,):
        door = await open_door(probe_mark=mark.encode())
        await door.set_backends([stall.backend()])
        tasks = await held(door, stall, 2)
        asking = asyncio.create_task(
            measurement.probe_door(door.address, "/held/probe", mark, timeout_s=60.0)
        )
        await busy(stall, 3)

        async def told() -> list[float]:
            found = (await door.sample()).unanswered
            waited_s = [age for age, count in found for _ in range(count)]
            # Who has waited for less may not be told of yet.
            return waited_s if len(waited_s) >= 2 and min(waited_s) >= 0.5 else []

        assert len(await eventually_async(told, "they are told of")) == 2
        sample = await door.sample()
        assert (sample.accepted, sample.in_flight) == (2, 2)
        stall.gate.set()
        assert {one.status for one in await asyncio.gather(*tasks)} == {200}
        assert (await asking).status == 200
        await sampled(door, "nobody waits", unanswered=[], accepted=2, answered=2)


async def test_an_answer_that_is_cut_off_counts_as_refused(open_door: OpenDoor) -> None:
    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        if not head.startswith(b"GET /well "):
            writer.write(b"half")
        else:
            writer.write(b"all of it")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(breaks_off, "127.0.0.1", 0)
    async with server:
        door = await open_door()
        port = server.sockets[0].getsockname()[1]
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=port)])
        for number in (1, 2):
            answer = await raw(port_of(door), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert answer.endswith(b"half")
            await sampled(door, "it is counted", accepted=number, refused=number, in_flight=0)


async def test_forwarded_fields_are_accepted_from_trusted_peers_only(
    open_door: OpenDoor,
) -> None:
    told = {"X-Forwarded-For": "10.9.9.9", "X_Forwarded_For": "10.8.8.8", "X-Real-IP": "10.7.7.7"}
    told["Keep-Alive"] = "timeout=5"
    async with stalls(1) as (stall,):
        for trusted, expected in (((), "127.0.0.1"), (("127.0.0.0/8",), "10.9.9.9, 127.0.0.1")):
            door = await open_door(trusted_peers=trusted)
            await door.set_backends([stall.backend()])
            async with await Connection.to(port_of(door)) as client:
                await client.ask(headers=told)
            fields = stall.headers[-1]
            chain = ", ".join(value for name, value in fields if name == "x-forwarded-for")
            assert chain == expected
            assert "x_forwarded_for" not in dict(fields)
            assert ("x-real-ip" in dict(fields)) == bool(trusted)
            assert dict(fields)["x-forwarded-proto"] == "http"
            assert dict(fields)["loadbalanced"]
            assert "tidegate" in dict(fields)["via"]
            assert "keep-alive" not in dict(fields)
            # Whoever makes a door its own server gets an end, and no storm.
            own = stall.backend()
            stall.port, port = port_of(door), stall.port
            await door.set_backends([stall.backend()])
            assert (await ask(port_of(door))).status == 508
            stall.port = port
            await door.set_backends([own])


# Each is for a door, and none of a stranger's reaches an instance.
NOT_PASSED_ON = {
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "TE": "trailers",
    "Proxy-Authorization": "Basic eA==",
    "Trailer": "X-End",
    "HTTP2-Settings": "AAMAAABk",
    "X-Forwarded-For": "10.9.9.9",
    "X_Forwarded_Host": "evil",
    "X-Forwarded-Proto": "evil",
    "X-Real-IP": "10.9.9.9",
    "x_real-ip": "10.9.9.9",
    "Forwarded": "for=10.9.9.9",
    "True-Client-IP": "10.9.9.9",
    "X-Forwarded-Host": "evil",
    "Upgrade": "h2c",
}
OF_A_BROWSER = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)",
    "Accept": "text/html,*/*;q=0.8",
    "Connection": "keep-alive",
    "Upgrade-Insecure-Requests": "1",
    "Referer": "http://shop/upgrade: connection: te: x-forwarded-for",
    "Cookie": "basket=7",
}


async def test_fields_for_a_door_are_dropped_each_by_itself_and_others_stay(
    open_door: OpenDoor,
) -> None:
    async with stalls(1) as (stall,):
        door = await open_door()
        await door.set_backends([stall.backend()])
        async with await Connection.to(port_of(door)) as client:
            for name, value in NOT_PASSED_ON.items():
                assert (await client.ask(headers={name: value})).status == 200
                assert value not in dict(stall.headers[-1]).values(), name
            await client.ask(headers=OF_A_BROWSER)
        kept = dict(stall.headers[-1])
        for name, value in OF_A_BROWSER.items():
            assert name == "Connection" or kept[name.lower()] == value
        for fields in stall.headers:
            names = [name for name, _ in fields]
            assert names.count("via") == names.count("loadbalanced") == 1
            told = {name: value for name, value in fields if name.startswith("x-forwarded-")}
            assert told == {
                "x-forwarded-for": "127.0.0.1",
                "x-forwarded-proto": "http",
                "x-forwarded-host": "shop",
            }


async def test_a_port_in_use_is_said_with_what_to_do(open_door: OpenDoor, engine: Engine) -> None:
    door = await open_door()
    with pytest.raises(Unavailable, match="in use; give another port"):
        await open_door(port=port_of(door))
    assert DoorSettings("shop").port == 0
    assert door.engine is engine


async def test_stopping_answers_what_is_here_and_says_whom_it_cut_off(open_door: OpenDoor) -> None:
    async with stalls(1) as (stall,):
        door = await open_door()
        await door.set_backends([stall.backend()])
        (slow,) = await held(door, stall, 1)
        stopping = asyncio.create_task(door.stop())
        port = port_of(door)

        async def closed() -> bool:
            try:
                await ask(port)
            except OSError:
                return True
            return False

        await eventually_async(closed, "nothing new is taken")
        stall.gate.set()
        assert (await slow).status == 200
        assert await stopping == 0

        other = await open_door()
        await other.set_backends([stall.backend()])
        (lost,) = await held(other, stall, 1)
        assert await other.stop(timeout_s=0.0) == 1
        with pytest.raises((OSError, h11.RemoteProtocolError)):
            await lost
