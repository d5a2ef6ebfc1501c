"""What only HAProxy needs: it is a process of its own that may be missing, die or lag behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from corpus import BAD_BODIES, BAD_HEADS, GOOD
from http_client import Connection, ask, raw
from stall import stalls
from waiting import eventually, eventually_async

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.services import Backend
from tidegate.doors import DOOR_LIMITS, DoorSettings
from tidegate.doors.haproxy import door as door_module
from tidegate.doors.haproxy import runtime, sensor
from tidegate.doors.haproxy.configuration import BACKEND, balance_of, weight_of
from tidegate.doors.haproxy.door import HaproxyDoor, HaproxyProcess, haproxy_program
from tidegate.doors.haproxy.runtime import Rows, RuntimeSocket
from tidegate.doors.haproxy.sensor import (
    CounterTotals,
    ProbeCounts,
    RequestLog,
    UnresponsiveServers,
    logged_per_thousand,
)
from tidegate.gateway.gateway import GatewayLimits

# HAProxy 2.6 reads these in the one way that RFC 9112 allows, and writes them anew: nothing that
# was hidden for somebody else is left in them. How many requests it finds, and why it may.
MENDED = {
    "a length beside a coding": (1, "6.3: the coding wins, the length goes, it hangs up behind it"),
    "a coding beside a length": (1, "6.3: the same"),
    "two lengths that agree": (1, "6.3: one of equal lengths is kept"),
    "a list of lengths": (1, "6.3: the same"),
    "a folded field": (1, "5.2: a proxy may write it as one line"),
    "a coding in a folded field": (2, "5.2: the same; what follows the body is the next request"),
    "a field ended by a bare LF": (1, "2.2: a recipient may take LF for the end of a line"),
    "a coding behind a bare LF": (2, "2.2: the same"),
    "bare LFs only": (1, "2.2: the same"),
    "a head ended by a bare LF": (1, "2.2: the same"),
    "a line ended by a bare LF": (1, "2.2: the same"),
    "two hosts that agree": (1, "both say the same, and one is kept"),
    "a chunk size with a blank behind": (1, "7.1.1: blanks before an extension; chunked anew"),
    "a chunk size ended by a bare LF": (1, "2.2; chunked anew"),
    "a chunk ended by a bare LF": (1, "2.2; chunked anew"),
    "a last chunk ended by a bare LF": (2, "2.2; what follows the body is the next request"),
    "a method that nobody knows": (1, "RFC 9110, 9.1: it is for the server to say 501"),
    "a folded trailer": (1, "5.2; trailers are dropped by most, and no part of the framing"),
}
# It has a status of its own for a coding that it does not know. Of a body that proves to be none
# the server may hear before HAProxy does: trailers it passes on as they are.
STATUSES = {"two codings": (422,), **dict.fromkeys(BAD_BODIES, (400, 502))}


SECRET = b"a secret of the tests"


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[HaproxyDoor]:
    door = HaproxyDoor(DoorSettings("shop", **settings))
    await door.start()
    try:
        yield door
    finally:
        await door.stop(timeout_s=0.0)


def port_of(door: HaproxyDoor) -> int:
    return int(door.address.rpartition(":")[2])


def _statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


async def test_malformed_requests_are_refused_or_mended_and_hide_nothing() -> None:
    limits = GatewayLimits(idle_timeout_s=0.1, waiting_max=100)
    async with stalls(1) as (stall,), opened(limits=limits) as door:
        await door.set_backends([stall.backend()])
        expected = 0
        for name, request in (BAD_HEADS | BAD_BODIES).items():
            answer = await raw(port_of(door), request)
            if name in MENDED:
                # As many answers as servers saw requests, and all to whoever sent them.
                expected += MENDED[name][0]
                assert _statuses(answer) == [200] * MENDED[name][0], (name, answer)
            else:
                (status,) = _statuses(answer)
                assert status in STATUSES.get(name, (400,)), (name, answer)
            # A client beside it gets its own answer.
            assert (await ask(port_of(door), f"/honest/{len(stall.requests)}")).status == 200
            expected += 1
            assert len(stall.requests) == expected, (name, stall.requests[-3:])
        for name, (request, count) in GOOD.items():
            answer = await raw(port_of(door), request)
            assert _statuses(answer) == [200] * count, (name, answer)
            expected += count
        assert len(stall.requests) == expected
        for header in stall.headers:
            names = [field for field, _ in header]
            assert names.count("content-length") + names.count("transfer-encoding") <= 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


# `GET http://a/` on stream 1, by HPACK's static table; the table's 12 is `:status: 400`.
HTTP_2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(4, 0, 0, b"")
    + _frame(1, 0x5, 1, b"\x82\x86\x84\x41\x01a")
)


async def test_http_2_preface_is_refused_by_the_door() -> None:
    async with stalls(1) as (stall,), opened() as door:
        await door.set_backends([stall.backend()])
        assert (await ask(port_of(door))).status == 200
        heard = len(stall.requests)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(door))
        writer.write(HTTP_2)
        answer = b""
        while b"\x8c" not in answer:
            more = await asyncio.wait_for(reader.read(4096), 60)
            assert more, answer
            answer += more
        writer.close()
        assert len(stall.requests) == heard


async def test_a_killed_haproxy_comes_back_where_it_was_with_its_servers() -> None:
    async with stalls(2) as (one, two), opened(session_secret=SECRET) as door:
        await door.set_backends([one.backend(concurrency=1), two.backend(draining=True)])
        await door.set_admission(2)
        port, first = port_of(door), door.pid
        for _ in range(20):
            assert (await ask(port)).body == b"i1"
        before = await door.sample()
        os.kill(first, signal.SIGKILL)
        # The socket is ours: who comes meanwhile waits for an answer, and gets it.
        assert (await ask(port)).body == b"i1"
        assert door.pid != first
        assert not two.requests
        stopped = asyncio.create_task(ask(port, "/held"))
        one.gate.clear()

        async def again() -> bool:
            sample = await door.sample()
            return not sample.trouble and sample.accepted >= before.accepted + 1

        await eventually_async(again, "it counts on")
        one.gate.set()
        await stopped
        after = await door.sample()
        assert after.door == before.door
        assert (after.accepted, after.answered) == (22, 22)
        assert {i.instance_id: i.answered for i in after.instances} == {1: 22, 2: 0}
        # It follows orders as the one before did.
        await door.set_backends([two.backend()])
        assert (await ask(port)).body == b"i2"


async def test_a_killed_haproxy_comes_back_with_the_sessions_of_who_drains() -> None:
    async with stalls(2) as (one, two), opened(session_secret=SECRET) as door:
        await door.set_backends([one.backend()])
        async with await Connection.to(port_of(door)) as client:
            cookie = (await client.ask()).headers["set-cookie"].partition(";")[0]
        until = time.time() + 600.0
        await door.set_backends([one.backend(draining=True, sessions_until=until), two.backend()])
        os.kill(door.pid, signal.SIGKILL)
        for _ in range(5):
            async with await Connection.to(port_of(door)) as client:
                assert (await client.ask(headers={"Cookie": cookie})).body == b"i1"
            assert (await ask(port_of(door))).body == b"i2"


async def test_settings_during_a_haproxy_restart_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    start = HaproxyProcess.start

    async def slow_start(process: HaproxyProcess, inherited_fds: Sequence[int]) -> None:
        begun.set()
        await may_go_on.wait()
        await start(process, inherited_fds)

    async with stalls(2) as (one, two), opened() as door:
        await door.set_backends([one.backend()])
        monkeypatch.setattr(HaproxyProcess, "start", slow_start)
        os.kill(door.pid, signal.SIGKILL)
        await begun.wait()
        # Its configuration is written already, with the server of before.
        changing = asyncio.create_task(door.set_backends([two.backend()]))
        await asyncio.sleep(0)
        assert [b.instance_id for b in door._wanted] == [2]
        may_go_on.set()
        await changing
        assert (await ask(port_of(door))).body == b"i2"


async def test_a_haproxy_whose_folder_was_tidied_away_comes_back_all_the_same() -> None:
    async with stalls(1) as (stall,), opened() as door:
        await door.set_backends([stall.backend()])
        assert door._folder is not None
        shutil.rmtree(door._folder)
        os.kill(door.pid, signal.SIGKILL)
        assert (await ask(port_of(door))).body == b"i1"
        assert stat.S_IMODE(door._folder.stat().st_mode) == 0o700


async def test_a_haproxy_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_TIDY_S", 0.06)
    async with stalls(1) as (stall,), opened() as door:
        await door.set_backends([stall.backend()])
        first = door.pid
        os.kill(first, signal.SIGSTOP)
        # An answer is waited for much longer than the door is tidied, as it is in earnest.
        with monkeypatch.context() as hurried:
            hurried.setattr(runtime, "_ANSWER_S", 0.3)

            async def replaced() -> bool:
                await door.sample()
                return door.pid != first

            await eventually_async(replaced, "another one is there")

        async def well() -> bool:
            return not (await door.sample()).trouble

        await eventually_async(well, "it answers")
        assert (await ask(port_of(door))).body == b"i1"


def lose_answer(door: HaproxyDoor, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The next orders are carried out, and nobody hears of it; set once they are."""
    carried_out = asyncio.Event()
    order = door._runtime.execute_and_read

    async def lost(commands: Sequence[str], proxies: Sequence[str]) -> tuple[str, Rows]:
        await order(commands, proxies)
        monkeypatch.setattr(door._runtime, "execute_and_read", order)
        carried_out.set()
        raise Unavailable("did not answer")

    monkeypatch.setattr(door._runtime, "execute_and_read", lost)
    return carried_out


async def seen_in(door: HaproxyDoor) -> dict[str, tuple[int, bool]]:
    """Of each server that it has the weight, and whether it gets anything."""
    found = {}
    # In one turn: else somebody may be deleted between two looks.
    async with door._turn:
        _, rows = await door._runtime.execute_and_read((), (BACKEND,))
        for name in rows.keys() - {"BACKEND"}:
            # `100 (initial 0)`
            words = await door._runtime.order(f"get weight {BACKEND}/{name}")
            found[name] = (int(words.split()[0]), rows[name]["status"] != "MAINT")
    return found


async def test_after_an_order_whose_answer_was_lost_nothing_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        stalls(3) as (one, two, three),
        opened(session_secret=SECRET) as door,
    ):
        await door.set_backends([one.backend()])
        # A spare comes, and is promoted before anybody knows that it is there; it has moved.
        spare = Backend(instance_id=2, host="127.0.0.1", port=three.port, weight=0.0)
        lose_answer(door, monkeypatch)
        with pytest.raises(Unavailable, match="did not answer"):
            await door.set_backends([one.backend(), spare])
        assert (await seen_in(door))["i2"] == (0, True)
        await door.set_backends([one.backend(weight=0.0), two.backend()])
        assert await seen_in(door) == {"i1": (0, True), "i2": (100, True)}
        assert {(await ask(port_of(door))).body for _ in range(4)} == {b"i2"}

        # One comes and is gone before anybody knows that it came.
        lose_answer(door, monkeypatch)
        with pytest.raises(Unavailable, match="did not answer"):
            await door.set_backends([two.backend(), three.backend()])
        await door.set_backends([two.backend()])
        assert not (await seen_in(door)).get("i3", (0, False))[1]
        assert {(await ask(port_of(door))).body for _ in range(4)} == {b"i2"}

        async def forgotten() -> bool:
            return await seen_in(door) == {"i2": (100, True)}

        await eventually_async(forgotten, "the others are deleted")


async def test_after_an_order_that_was_given_up_nothing_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stalls(2) as (one, two), opened() as door:
        await door.set_backends([one.backend(), two.backend()])
        order, carried_out = door._runtime.execute_and_read, asyncio.Event()

        async def slow(commands: Sequence[str], proxies: Sequence[str]) -> tuple[str, Rows]:
            await order(commands, proxies)
            carried_out.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody waits for so long")

        monkeypatch.setattr(door._runtime, "execute_and_read", slow)
        ordering = asyncio.create_task(door.set_backends([one.backend(), two.backend(0.5)]))
        await asyncio.wait_for(carried_out.wait(), 60)
        ordering.cancel()
        await asyncio.gather(ordering, return_exceptions=True)
        monkeypatch.setattr(door._runtime, "execute_and_read", order)
        assert await seen_in(door) == {"i1": (100, True), "i2": (50, True)}
        # As it was before, which is what it was known to be.
        await door.set_backends([one.backend(), two.backend()])
        assert await seen_in(door) == {"i1": (100, True), "i2": (100, True)}


async def test_a_server_that_was_deleted_unheard_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stalls(2) as (one, two), opened() as door:
        await door.set_backends([one.backend(), two.backend()])
        await door.set_backends([one.backend()])
        deleted = lose_answer(door, monkeypatch)
        await asyncio.wait_for(deleted.wait(), 60)
        assert set(await seen_in(door)) == {"i1"}
        await door.set_backends([one.backend(weight=0.0), two.backend()])
        assert (await ask(port_of(door))).body == b"i2"


async def test_a_haproxy_ends_with_whoever_has_started_it(short_folder: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from tidegate.doors import DoorSettings\n"
        "from tidegate.doors.haproxy.door import HaproxyDoor\n"
        "async def main():\n"
        "    door = HaproxyDoor(DoorSettings('shop'))\n"
        "    await door.start()\n"
        "    print(door.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        stdout=asyncio.subprocess.PIPE,
        # Who is killed leaves its folder behind.
        env=os.environ | {"TMPDIR": str(short_folder)},
    )
    assert owner.stdout is not None
    haproxy = Path(f"/proc/{int(await owner.stdout.readline())}")
    assert "haproxy" in (haproxy / "cmdline").read_text()
    owner.kill()
    await owner.wait()

    def gone() -> bool:
        try:
            return "State:\tZ" in (haproxy / "status").read_text()
        except OSError:
            return True

    await asyncio.to_thread(eventually, gone, "the kernel has ended it")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """With a path that is short enough for a socket; pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        yield Path(folder)


async def test_its_folder_is_for_us_only_and_goes_with_it(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    secret = b"a secret that nobody reads"
    door = HaproxyDoor(DoorSettings("shop", session_secret=secret))
    await door.start()
    modes = _modes(short_folder)
    assert sorted(path.name for path in modes)[:2] == ["haproxy.cfg", "runtime"]
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    (configuration,) = (path for path in modes if path.name == "haproxy.cfg")
    assert secret.decode() not in configuration.read_text()
    await door.stop()
    assert not _modes(short_folder)


async def test_where_temporary_folders_have_long_names_it_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    door = HaproxyDoor(DoorSettings("shop"))
    await door.start()
    await door.stop()
    assert not list(long.iterdir())


def _modes(folder: Path) -> dict[Path, int]:
    return {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


async def test_a_variable_that_cannot_be_read_is_trouble_and_no_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stalls(1) as (stall,), opened() as door:
        await door.set_backends([stall.backend()])
        port = port_of(door)
        assert (await ask(port)).status == 200

        async def one_is_counted() -> bool:
            return (await door.sample()).answered == 1

        await eventually_async(one_is_counted, "the first is counted")
        asked = runtime.RuntimeSocket._asked

        async def in_other_words(self: runtime.RuntimeSocket, command: str) -> bytes:
            return (await asked(self, command)).replace(b"type=sint value=", b"integer ")

        with monkeypatch.context() as patched:
            patched.setattr(runtime.RuntimeSocket, "_asked", in_other_words)
            assert (await ask(port)).status == 200
            sample = await door.sample()
        assert "what HAProxy says of proc.probes cannot be read" in sample.trouble
        assert "integer <0>" in sample.trouble
        assert (sample.accepted, sample.answered) == (1, 1)

        async def both_are_counted() -> bool:
            sample = await door.sample()
            return (sample.accepted, sample.answered, sample.trouble) == (2, 2, "")

        await eventually_async(both_are_counted, "it is understood again")


async def test_haproxy_door_refuses_invalid_settings_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for settings, match in (
        (DoorSettings("shop", balancing="workload"), "choose one of round-robin, least"),
        (DoorSettings("shop", health_path="/a b"), "must be a path"),
        # It would end the word that it stands in.
        (DoorSettings("shop", health_path="/it's"), "must be a path"),
        (DoorSettings("shop", limits=GatewayLimits(deadline_s=1.0)), "take the engine gateway"),
    ):
        with pytest.raises(InvalidValue, match=match):
            await HaproxyDoor(settings).start()
    assert balance_of("better-of-two") == "leastconn"
    door = HaproxyDoor(DoorSettings("shop"))
    await door.start()
    try:
        one = Backend(instance_id=1, host="127.0.0.1", port=1)
        with pytest.raises(InvalidValue, match="each instance is there once"):
            await door.set_backends([one, one])
        # What a machine calls itself is looked up, and never part of an order.
        for host in ("a b; disable frontend door", "no.such.host.invalid"):
            with pytest.raises(Unavailable, match="has no address"):
                await door.set_backends([Backend(instance_id=1, host=host, port=1)])
        # The others are taken all the same.
        nobody = Backend(instance_id=2, host="no.such.host.invalid", port=1)
        with pytest.raises(Unavailable, match=r"i2 is at 'no\.such"):
            await door.set_backends([Backend(instance_id=1, host="localhost", port=1), nobody])
        assert [i.instance_id for i in (await door.sample()).instances] == [1]
    finally:
        await door.stop()
    assert await door.stop() == 0
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="apt install haproxy"):
        haproxy_program()


async def test_of_many_servers_that_are_down_every_figure_is_read() -> None:
    """As JSON, HAProxy 2.6 loses fields where its buffers end: 43 KB for two servers."""
    async with opened(health_path="/well") as door:
        # Nobody listens there.
        nobody = [Backend(instance_id=n, host="127.0.0.1", port=1) for n in range(1, 41)]
        await door.set_backends(nobody)

        async def all_out() -> bool:
            sample = await door.sample()
            assert not sample.trouble
            assert [one.instance_id for one in sample.instances] == [*range(1, 41)]
            return all(one.ejected for one in sample.instances)

        await eventually_async(all_out, "all are out")


async def test_servers_that_have_gone_are_forgotten_and_their_counts_are_not() -> None:
    async with stalls(2) as (one, two), opened(limits=DOOR_LIMITS) as door:
        await door.set_backends([one.backend()])
        async with await Connection.to(port_of(door)) as client:
            for _ in range(5):
                await client.ask()
            await door.set_backends([two.backend()])
            await client.ask()

        async def forgotten() -> bool:
            sample = await door.sample()
            return [i.instance_id for i in sample.instances] == [2]

        await eventually_async(forgotten, "it is deleted")
        sample = await door.sample()
        assert (sample.answered, sample.accepted) == (6, 6)
        assert [i.answered for i in sample.instances] == [1]
        # It may come back.
        await door.set_backends([one.backend()])
        assert (await ask(port_of(door))).body == b"i1"


def test_a_few_requests_between_two_quick_looks_are_no_high_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s = 0.0
    monkeypatch.setattr(sensor, "monotonic", lambda: now_s)
    looking = sensor.HaproxySensor(RuntimeSocket(str(tmp_path / "socket")))
    kept = 1000
    for look in range(200):
        # 300 requests a second, three at a time; the other looks find none.
        now_s = look * 0.005
        looking._tally.update({"req_tot": look // 2 * 3}, {})
        kept = looking.kept(kept)
        assert kept == 1000
    now_s += 1.0
    looking._tally.update({"req_tot": 4_000}, {})
    assert looking.kept(kept) == 100


def test_the_log_keeps_fewer_lines_where_there_are_too_many_and_counts_them_in_full() -> None:
    rates_per_s = (0.0, 399.0, 401.0, 3_000.0, 1e9)
    assert [logged_per_thousand(rate) for rate in rates_per_s] == [1000, 1000, 500, 100, 10]
    log = RequestLog()
    lines = [
        # Server, status, how it ended, whole, reading, waiting, kept.
        ["i1", 200, "--", 120, 10, 100, 1000],
        ["i1", 200, "--", 20, 0, 0, 100],
        ["<NOSRV>", 503, "SC", 1000, 0, 1000, 1000],
        ["i1", 504, "sH", 1000, 0, 0, 1000],
        ["i1", -1, "CR", 1000, 0, -1, 1000],
    ]
    said = "<5>Proxy door stopped (cumulated conns: FE: 4, BE: 0).\n"
    data = ("".join(f"<6>{json.dumps(line)}\n" for line in lines) + said).encode()
    for part in (data[:30], data[30:]):
        os.write(log.write_fd, part)
        log.read()
    assert log.response_time.count == 11
    assert log.by_server["i1"].percentile_s(0.5) == pytest.approx(0.0205, rel=0.1)
    assert log.by_server["i1"].max_s == pytest.approx(0.0205)
    assert log.response_time.max_s == pytest.approx(0.1205)
    assert log.other_lines == 1


def test_totals_never_run_backwards_over_restarts_and_deletions() -> None:
    tally = CounterTotals()
    row: dict[str, int | str] = {"stot": 10, "hrsp_2xx": 7, "hrsp_5xx": 1, "econ": 2}
    tally.update({"req_tot": 12, "hrsp_5xx": 3}, {"i1": row, "i2": row})
    assert (tally.accepted, tally.answered, tally.refused) == (12, 16, 1)
    tally.restarted()
    assert (tally.accepted, tally.answered, tally.refused) == (12, 16, 1)
    tally.update({"req_tot": 1, "hrsp_5xx": 1}, {"i1": {"stot": 1, "hrsp_5xx": 1}})
    tally.deleted("i2")
    assert (tally.accepted, tally.answered, tally.refused) == (13, 17, 1)
    assert (tally.server("i1").sent, tally.server("i1").failed) == (11, 2)
    assert tally.server("i2").sent == 0


def test_probes_are_taken_off_whatever_became_of_them() -> None:
    probes = ProbeCounts()
    for server, status, ended in (
        ("i1", 200, "--"),
        ("i1", 503, "--"),
        ("i1", 200, "SD"),
        ("i1", 504, "sH"),
        ("<NOSRV>", 503, "SC"),
    ):
        probes.add(server, status, ended, 1)
    tally = CounterTotals()
    # Beside them: one that was answered, and an error of the application's.
    row: dict[str, int | str] = {"stot": 6, "hrsp_2xx": 3, "hrsp_5xx": 2, "srv_abrt": 1}
    tally.update({"req_tot": 7, "hrsp_2xx": 3, "hrsp_5xx": 4}, {"i1": row}, probes)
    assert (tally.accepted, tally.answered, tally.refused) == (2, 2, 0)
    assert tally.by_class == {"2xx": 1, "5xx": 1}
    assert (tally.server("i1").answered, tally.server("i1").server_errors) == (2, 1)
    # One whose line comes before HAProxy shows it takes nothing back that was said.
    early = ProbeCounts()
    early.add("i1", 200, "--", 1)
    tally.update({"req_tot": 7, "hrsp_2xx": 3, "hrsp_5xx": 4}, {"i1": row}, early)
    assert (tally.accepted, tally.answered, tally.refused) == (2, 2, 0)
    tally.update({"req_tot": 8, "hrsp_2xx": 4, "hrsp_5xx": 4}, {"i1": row | {"hrsp_2xx": 4}})
    assert (tally.accepted, tally.answered, tally.by_class["2xx"]) == (2, 2, 1)


def test_a_probe_that_is_under_way_counts_nowhere_also_over_a_restart() -> None:
    tally = CounterTotals()
    ended = ProbeCounts()
    ended.add("i1", 200, "--", 2)
    tally.update({"req_tot": 8}, {}, ended, probes_begun=3)
    assert (tally.accepted, tally.probes_under_way) == (5, 1)
    tally.restarted()
    assert (tally.accepted, tally.probes_under_way) == (5, 0)
    tally.update({"req_tot": 2}, {}, ProbeCounts(), probes_begun=1)
    assert (tally.accepted, tally.probes_under_way) == (6, 1)


def test_of_servers_that_answer_nothing_it_is_known_who_waits_and_for_how_long() -> None:
    silence = UnresponsiveServers()
    row: dict[str, int | str] = {"stot": 5, "hrsp_2xx": 5, "scur": 0}
    silence.update({"i1": row}, 0.0)
    row |= {"stot": 8, "scur": 3}
    silence.update({"i1": row}, 1.0)
    row |= {"stot": 9, "scur": 4}
    silence.update({"i1": row}, 2.0)
    assert silence.unanswered(2.5, 0) == [(0.5, 1), (1.5, 3)]
    # A probe is none of those that have waited for long.
    assert silence.unanswered(2.5, 1) == [(0.5, 1), (1.5, 2)]
    assert silence.unanswered(9.0, 1) == [(7.0, 1), (8.0, 3)]
    # One has been given up, and nobody knows which.
    row |= {"cli_abrt": 1, "scur": 3}
    silence.update({"i1": row}, 9.0)
    assert silence.unanswered(9.0, 0) == [(7.0, 1), (8.0, 2)]
    # Somebody is answered: of the others nothing is certain any more.
    silence.update({"i1": row | {"hrsp_2xx": 6, "scur": 2}}, 10.0)
    assert silence.unanswered(10.0, 0) == []
    # A WebSocket has its answer when it is opened, and a server that is new has none to give yet.
    silence.update({"i1": row | {"hrsp_2xx": 6, "hrsp_1xx": 1, "stot": 10, "scur": 3}}, 11.0)
    silence.update({"i1": {"stot": 1, "scur": 1}, "i2": {"stot": 3, "scur": 3}}, 20.0)
    assert silence.unanswered(30.0, 0) == []


def test_typed_figures_are_read_and_anything_else_is_passed_over() -> None:
    lines = (
        "S.3.1.0.pxname.1:KNS:str:instances",
        "S.3.1.1.svname.1:KNS:str:i1",
        "S.3.1.4.scur.1:MGP:u32:7",
        "S.3.1.65.last_chk.1:MOP:str:HTTP status: 503",
        "S.3.1.66.odd.1:MOP:u32:many",
        "nonsense",
        "F.2.0.0.pxname.1:KNS:str:another",
        "F.2.0.1.svname.1:KNS:str:FRONTEND",
    )
    rows = runtime.parse_rows("\n".join(lines).encode() + b"\n\n> ", ("instances",))
    assert list(rows) == ["i1"]
    assert (rows["i1"]["scur"], rows["i1"]["last_chk"]) == (7, "HTTP status: 503")
    assert "odd" not in rows["i1"]
    assert runtime.counter_value(rows["i1"], "last_chk") == 0


def test_weights_become_whole_numbers_in_proportion() -> None:
    one = Backend(instance_id=1, host="a", port=1, weight=0.001)
    two = Backend(instance_id=2, host="a", port=2, weight=4.0)
    rest = Backend(instance_id=3, host="a", port=3, weight=0.0)
    assert [weight_of(b, (one, two, rest)) for b in (one, two, rest)] == [1, 100, 0]
    assert weight_of(rest, (rest,)) == 0
