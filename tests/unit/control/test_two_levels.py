"""Doors from inside and a probe from outside: what each sees, added up, and when they disagree."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import Verdict
from tidegate.agreements.ledger import StoredAgreementStatus, Transition
from tidegate.control.services.measurement import (
    DIFFERS_SAMPLES,
    Disagreement,
    Disagreements,
    HttpProbe,
    ProbeSample,
    ServiceMonitor,
    probe_door,
)
from tidegate.control.services.performance import DoorReader, MergedServiceSample
from tidegate.core.services import DoorSample, Instance, InstanceSample, InstanceState

pytestmark = pytest.mark.asyncio

SHOP = parse_agreement(
    """
name = "shop"
http = "shop"
window = "5s"
objective = 0.9
period = "10m"
[metrics.response_p95]
breach = "1s"
[metrics.availability]
breach = 0.9
[metrics.free_memory]
breach = "100MiB"
""",
    "shop.toml",
)


def sample(
    at: float,
    total: int,
    *,
    door: str = "a",
    refused: int = 0,
    response_s: float = 0.1,
    outstanding: int = 2,
    errors: int = 0,
) -> DoorSample:
    return DoorSample(
        service="shop",
        door=door,
        at=at,
        address=f"127.0.0.1:80{door}",
        accepted=total,
        answered=total,
        refused=refused,
        waiting=1,
        in_flight=outstanding + 1,
        response=[(response_s, total)],
        instances=[
            InstanceSample(
                instance_id=1,
                outstanding=outstanding,
                sent=total,
                answered=total,
                server_errors=errors,
                response=[(response_s, total)],
            )
        ],
    )


def reading(reader: DoorReader, samples: list[DoorSample], at: float) -> MergedServiceSample:
    reader.read(samples, at)
    found = reader.reading(at)
    assert found is not None
    return found


async def test_the_first_look_only_tells_where_totals_stand() -> None:
    reader = DoorReader()
    reader.read([sample(100.0, 5000)], 0.0)
    assert reader.reading(0.0) is None
    found = reading(reader, [sample(101.0, 5030)], 1.0)
    assert (found.answered_per_s, found.in_hand, found.waiting) == (30.0, 3, 1)
    assert found.instance(1).answered_per_s == 30.0


async def test_a_lost_sample_changes_no_rate() -> None:
    reader = DoorReader()
    reader.read([sample(100.0, 0)], 0.0)
    assert reading(reader, [sample(103.0, 90)], 3.0).answered_per_s == 30.0


async def test_the_same_sample_again_is_no_news() -> None:
    reader = DoorReader()
    reader.read([sample(100.0, 0)], 0.0)
    reading(reader, [sample(101.0, 30)], 1.0)
    reader.read([sample(101.0, 30)], 1.5)
    assert reader.reading(1.5) is None


async def test_two_doors_are_one_service() -> None:
    reader = DoorReader()
    reader.read([sample(100.0, 0), sample(100.2, 0, door="b")], 0.0)
    reading(reader, [sample(101.0, 30), sample(101.2, 20, door="b")], 1.3)
    # One of them has reported: the other one is waited for, a moment.
    reader.read([sample(102.0, 60), sample(101.2, 20, door="b")], 2.0)
    assert reader.reading(2.0) is None
    both = reading(reader, [sample(102.0, 60), sample(102.2, 40, door="b")], 2.4)
    assert both.answered_per_s == 50.0
    assert both.in_hand == 6
    assert both.instance(1).outstanding == 4
    assert both.addresses == ("127.0.0.1:80a", "127.0.0.1:80b")


async def test_a_door_that_was_restarted_counts_from_zero() -> None:
    reader = DoorReader()
    for second in range(10):
        reader.read([sample(100.0 + second, 1000 + 30 * second)], float(second))
    reader.reading(9.0)
    # Another one since: its totals have all happened in the last second.
    found = reading(reader, [sample(110.0, 25, door="c")], 16.0)
    assert found.answered_per_s == 25.0


async def test_a_door_whose_clock_is_set_back_is_heard_on() -> None:
    reader = DoorReader()
    reader.read([sample(1000.0, 0)], 0.0)
    reading(reader, [sample(1001.0, 30)], 1.0)
    reader.read([sample(500.0, 60)], 2.0)
    assert reader.reading(2.0) is None
    assert reading(reader, [sample(501.0, 90)], 3.0).answered_per_s == 30.0


async def test_a_door_that_nobody_heard_of_for_long_does_not_count_its_whole_life() -> None:
    """As one that comes back to a leader that has not known it: a million requests in a second."""
    reader = DoorReader()
    for second in range(10):
        reader.read([sample(100.0 + second, 30 * second)], float(second))
    reader.reading(9.0)
    old = msgspec.structs.replace(sample(110.0, 1_000_000, door="b"), began_at=20.0)
    found = reading(reader, [sample(110.0, 300), old], 10.0)
    assert found.answered_per_s == 30.0
    later = msgspec.structs.replace(sample(111.0, 1_000_020, door="b"), began_at=20.0)
    assert reading(reader, [sample(111.0, 330), later], 11.0).answered_per_s == 50.0
    # One that has just begun counts from zero.
    new = msgspec.structs.replace(sample(111.9, 40, door="c"), began_at=111.0)
    doors = [
        sample(112.0, 360),
        msgspec.structs.replace(later, at=112.0, answered=1_000_040, accepted=1_000_040),
        new,
    ]
    assert reading(reader, doors, 12.0).answered_per_s == 30.0 + 20.0 + 40.0


async def test_silent_door_is_left_out_after_a_while() -> None:
    reader = DoorReader()
    reader.read([sample(100.0, 0), sample(100.0, 0, door="b")], 0.0)
    reader.read([sample(101.0, 30), sample(101.0, 30, door="b")], 1.0)
    reader.reading(1.0)
    assert not reader.is_silent(5.0)
    found = reading(reader, [sample(109.0, 270)], 9.0)
    assert found.in_hand == 3
    assert reader.is_silent(20.0)


def instance(free_bytes: float = 1e9) -> Instance:
    return Instance(
        instance_id=1,
        service="shop",
        version=1,
        state=InstanceState.READY,
        free_memory_bytes=free_bytes,
    )


def fed(
    monitoring: ServiceMonitor,
    response_s: float,
    begin_s: int,
    *,
    errors: int = 0,
    free: float = 1e9,
) -> list[object]:
    """Eight seconds of a door."""
    entries = []
    for second in range(begin_s, begin_s + 8):
        one = sample(1000.0 + second, 30 * second, response_s=response_s, errors=errors * second)
        measured = monitoring.update([one], [instance(free)], float(second), 1000.0 + second)
        entries += measured.entries
    return entries


async def test_monitor_judges_door_reports_in_windows() -> None:
    monitoring = ServiceMonitor(SHOP)
    [entry, *_] = fed(monitoring, 1.5, 0)
    assert entry.window.verdict is Verdict.BREACHED  # type: ignore[attr-defined]
    [event] = entry.events  # type: ignore[attr-defined]
    assert (event.turn, event.metric) == (Transition.BREACHED, "response_p95")


@pytest.mark.parametrize("off_s", [4.0, -4.0, 0.4])
async def test_a_door_whose_clock_is_off_makes_nobody_late(off_s: float) -> None:
    monitoring = ServiceMonitor(SHOP)
    windows = []
    for second in range(20):
        wall = 1000.0 + second
        doors = [
            sample(wall + off_s, 30 * second, door="a"),
            sample(wall, 30 * second, door="b"),
        ]
        measured = monitoring.update(doors, [instance(1e9)], float(second), wall)
        windows += [entry.window for entry in measured.entries]
    assert monitoring.ledger.late_samples == 0
    # Five seconds of both of them.
    assert {one.samples for one in windows[1:]} == {10}


async def test_answers_of_500_and_a_lack_of_memory_are_promises_too() -> None:
    entries = fed(ServiceMonitor(SHOP), 0.1, 0, errors=10, free=50 * 2.0**20)
    metrics = {
        event.metric
        for entry in entries
        for event in entry.events  # type: ignore[attr-defined]
        if event.turn is Transition.BREACHED
    }
    assert metrics == {"availability", "free_memory"}


async def test_the_window_that_is_open_warns_before_it_is_over() -> None:
    monitoring = ServiceMonitor(SHOP)
    for second in range(3):
        one = sample(1000.0 + second, 30 * second, response_s=0.9)
        measured = monitoring.update([one], [], float(second), 1000.0 + second)
    assert not measured.entries
    assert measured.window is not None
    assert measured.window.verdict is Verdict.WARNED


async def test_under_another_document_the_budget_begins_anew() -> None:
    first = ServiceMonitor(SHOP)
    [entry, *_] = fed(first, 1.5, 0)
    kept = StoredAgreementStatus.of(SHOP, entry, first.ledger.history)  # type: ignore[arg-type]
    same = ServiceMonitor(SHOP, kept)
    assert same.ledger.history.minutes
    other = msgspec.structs.replace(kept, history=type(kept.history)("something else", {}, {}))
    assert not ServiceMonitor(SHOP, other).ledger.history.minutes


def read(**changes: object) -> MergedServiceSample:
    values: dict[str, object] = {
        "at": 0.0,
        "in_hand": 3,
        "waiting": 0,
        "answered_per_s": 30.0,
        "accepted_per_s": 30.0,
        "refused_per_s": 0.0,
        "response": [(0.1, 30)],
    }
    return MergedServiceSample(**(values | changes))  # type: ignore[arg-type]


def probed(duration_s: float = 0.1, failure: str = "") -> ProbeSample:
    return ProbeSample(0.0, "127.0.0.1:80", duration_s, None if failure else 200, failure)


@pytest.mark.parametrize(
    ("probe", "seen", "says"),
    [
        (probed(failure="no answer within 2 s"), read(), "the probe fails: no answer"),
        (probed(duration_s=1.5), read(), "the probe waits 1.5 s"),
        (probed(), read(refused_per_s=10.0), "the probe is well, and doors report"),
        (probed(), read(trouble="HAProxy does not run"), "doors report: HAProxy does not run"),
    ],
)
async def test_disagreement_of_door_and_probe_is_reported_once(
    probe: ProbeSample, seen: MergedServiceSample, says: str
) -> None:
    disagreement = Disagreement()
    said = [disagreement.update(probe, seen) for _ in range(DIFFERS_SAMPLES + 3)]
    # Once, and not for a single sample.
    assert [one for one in said if one is not None] == [disagreement.now]
    assert said[DIFFERS_SAMPLES - 1] is not None
    assert says in disagreement.now
    over = [disagreement.update(probed(), read()) for _ in range(DIFFERS_SAMPLES)]
    assert over[-1] == ""


async def test_a_door_that_is_well_hides_none_that_nobody_can_reach() -> None:
    disagreements = Disagreements()
    assert not disagreements.follow(read(addresses=("a:80", "b:80")))
    said = []
    for _ in range(DIFFERS_SAMPLES + 2):
        # Each is asked in turn.
        for address, failure in (("a:80", ""), ("b:80", "connection refused")):
            sample = ProbeSample(0.0, address, 0.1, None if failure else 200, failure)
            said.append(disagreements.update(sample, 0.0, is_silent=False, is_bounded=False))
    assert [one for one in said if one is not None] == [
        "doors report no trouble, and the probe fails: connection refused (asked at b:80)"
    ]
    # The one that nobody reached is gone, and with it what was said of it.
    assert not disagreements.follow(read(addresses=("a:80",)))
    gone = ProbeSample(0.0, "b:80", 0.1, None, "connection refused", nobody_listens=True)
    assert disagreements.update(gone, 0.0, is_silent=False, is_bounded=False) == ""
    assert disagreements.addresses == ("a:80",)
    assert disagreements.update(gone, 0.0, is_silent=False, is_bounded=False) is None


def asked_in_turn(
    hangs_from_s: int, until_s: int, after: ProbeSample
) -> tuple[Disagreements, list[tuple[int, str]]]:
    """Two doors, of which b says and answers nothing for a while; what was said, and when."""
    reader, disagreements = DoorReader(), Disagreements()
    said: list[tuple[int, str]] = []
    free_at, turn = 0, 0
    for now in range(until_s + 40):
        hangs = hangs_from_s <= now < until_s
        doors = [sample(100.0 + now, 30 * now)]
        if now < hangs_from_s or (now >= until_s and not after.failure):
            doors.append(sample(100.0 + now, 30 * now, door="b"))
        reader.read(doors, float(now))
        if (found := reader.reading(float(now))) is not None:
            disagreements.follow(found)
        if not disagreements.addresses or now < free_at:
            continue
        turn += 1
        address = disagreements.addresses[turn % len(disagreements.addresses)]
        is_b = address.endswith("b")
        seen = ProbeSample(0.0, address, 0.1, 200)
        if is_b and hangs:
            seen = ProbeSample(0.0, address, 2.0, None, "no answer within 2 s")
            free_at = now + 2
        elif is_b and now >= until_s:
            seen = replace(after, address=address)
        told = disagreements.update(seen, float(now), is_silent=False, is_bounded=False)
        if told is not None:
            said.append((now, told))
    return disagreements, said


async def test_hanging_door_is_reported_while_the_other_serves() -> None:
    well = ProbeSample(0.0, "", 0.1, 200)
    disagreements, said = asked_in_turn(10, 40, well)
    (begun_s, begins), (over_s, over) = said
    assert begins == (
        "the door reports no more, and the probe fails: no answer within 2 s "
        "(asked at 127.0.0.1:80b)"
    )
    assert over == ""
    assert 10 < begun_s < 25 < 40 < over_s
    assert len(disagreements.addresses) == 2


async def test_ended_door_is_no_disagreement() -> None:
    ended = ProbeSample(0.0, "", 0.1, None, "connection refused", nobody_listens=True)
    disagreements, said = asked_in_turn(10, 10, ended)
    assert said == []
    assert len(disagreements.addresses) == 1


async def test_a_door_that_hangs_and_is_ended_is_told_of_no_longer() -> None:
    ended = ProbeSample(0.0, "", 0.1, None, "connection refused", nobody_listens=True)
    disagreements, said = asked_in_turn(10, 40, ended)
    assert [one for _, one in said][1:] == [""]
    assert len(disagreements.addresses) == 1


async def test_a_door_that_nobody_has_heard_of_for_long_is_asked_no_more() -> None:
    disagreements = Disagreements()
    disagreements.follow(read(addresses=("a:80", "b:80")))
    disagreements.follow(read(at=599.0, addresses=("a:80",)))
    assert disagreements.addresses == ("a:80", "b:80")
    assert not disagreements.follow(read(at=601.0, addresses=("a:80",)))
    assert disagreements.addresses == ("a:80",)


async def test_both_in_trouble_or_told_to_refuse_is_no_disagreement() -> None:
    disagreement = Disagreement()
    for _ in range(10):
        assert disagreement.update(probed(failure="503"), read(refused_per_s=20.0)) is None
        assert disagreement.update(probed(), read(refused_per_s=9.0), is_bounded=True) is None
        # Also the probe may be one too many.
        refused = ProbeSample(0.0, "127.0.0.1:80", 0.01, 503, "it answered 503")
        assert disagreement.update(refused, read(), is_bounded=True) is None


async def test_a_probe_asks_a_real_address_on_a_connection_of_its_own() -> None:
    heads: list[bytes] = []
    status = 200

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if status == 0:
            await reader.read()
        else:
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\nok".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        well = await probe_door(address, "/well")
        status = 503
        ill = await probe_door(f"http://{address}", "/well")
        status = 0
        silent = await probe_door(address, "/well", timeout_s=0.5)
    gone = await probe_door(address, "/well")
    assert (well.status, well.failure) == (200, "")
    assert well.duration_s > 0.0
    assert heads[0].startswith(b"GET /well HTTP/1.1\r\nHost: 127.0.0.1:")
    assert (ill.status, ill.failure) == (503, "it answered 503")
    assert (silent.status, silent.failure) == (None, "no answer within 0.5 s")
    assert gone.status is None
    assert gone.failure
    assert [one.nobody_listens for one in (well, ill, silent, gone)] == [False, False, False, True]
    assert len(heads) == 3


async def test_a_probe_asks_each_second_and_of_two_doors_each_in_turn() -> None:
    asked: list[str] = []

    async def note(address: str, path: str, mark: str) -> ProbeSample:
        asked.append(address)
        return probed()

    probe = HttpProbe(note)
    probe.addresses = ("a", "b")
    came = []
    for tenth in range(41):
        came += probe.tick(tenth / 10.0)
        await asyncio.sleep(0)
    assert sorted(asked[:4]) == ["a", "a", "b", "b"]
    assert len(asked) == 5
    assert len(came) >= 4
    probe.stop()
