"""The TAPAS experiments: their arithmetic, the bookshop and its clients, and each part in small."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.lab.peers.server import ServerMissing
from tidegate.lab.report.section import Section
from tidegate.lab.tapas.bookshop import ShopSetting
from tidegate.lab.tapas.clients import SESSION, Crowd, Requests, Visit
from tidegate.lab.tapas.clients_process import visited
from tidegate.lab.tapas.gateway_process import Note
from tidegate.lab.tapas.hosted import Crew
from tidegate.lab.tapas.keeping import keeping_section
from tidegate.lab.tapas.oracle import needed, oracle_seconds, paid_seconds
from tidegate.lab.tapas.overhead import overhead_section
from tidegate.lab.tapas.pairs import mean_ratio, ratio_at_least, ratio_at_most
from tidegate.lab.tapas.plan import Case, KeepingPlan, OverheadPlan, PairCase, SkewPlan
from tidegate.lab.tapas.promise import breached_s, warned_s, windows_of
from tidegate.lab.tapas.shops import Shop, shops_running
from tidegate.lab.tapas.skew import skew_section
from tidegate.lab.tapas.unevenness import even_after_s, herding
from tidegate.lab.tapas.ways import WAYS

# Arithmetic


def test_equal_pairs_leave_no_doubt_and_scattered_ones_widen_the_bound() -> None:
    assert ratio_at_most([1.01] * 10) == pytest.approx(1.01)
    assert mean_ratio([2.0, 0.5]) == pytest.approx(1.0)
    narrow, wide = [0.99, 1.01] * 5, [0.9, 1.1] * 5
    assert 1.0 < ratio_at_most(narrow) < ratio_at_most(wide)
    assert ratio_at_least(wide) < ratio_at_least(narrow) < 1.0
    # Of ten: t(0.95, 9) is 1.833, and the deviation of the logarithms 0.0105.
    assert ratio_at_most(narrow) == pytest.approx(1.0 + 1.833 * 0.01054 / 10**0.5, abs=1e-4)
    assert ratio_at_most([1.0]) == float("inf"), "one pair says nothing"


def visit_of(*times_s: float, each_s: float = 0.1, status: int = 200) -> Visit:
    """Requests that ended one after the other, and took so long."""
    requests = Requests()
    for number, took_s in enumerate(times_s):
        requests.add(100.0 + number * each_s, took_s, status)
    over_at = 100.0 + len(times_s) * each_s
    return Visit(100.0, over_at, [(100.0, over_at)], requests)


def test_a_window_is_warned_of_and_breached_by_its_95th_percentile() -> None:
    met, warned, breached = [0.3] * 50, [0.3] * 47 + [0.85] * 3, [0.3] * 47 + [1.2] * 3
    rare = [0.3] * 48 + [9.0] * 2
    windows = windows_of(visit_of(*met, *warned, *breached, *rare, *[0.3] * 20))
    assert [one.verdict for one in windows] == ["met", "warned", "breached", "met"]
    assert (warned_s(windows), breached_s(windows)) == (10.0, 5.0)


def test_an_answer_of_503_keeps_no_promise_and_is_no_measurement() -> None:
    assert windows_of(visit_of(*[0.01] * 100, status=503)) == []
    assert visit_of(*[0.01] * 100, status=503).requests.failed == 100


def test_the_oracle_takes_as_few_as_answer_all_clients_before_the_breach() -> None:
    shop = ShopSetting(concurrency=4, service_s=0.27)
    assert [needed(clients, shop, 1.0, 1, 4) for clients in (0, 10, 14, 15, 20, 30, 40, 50)] == [
        *(1, 1, 1, 2, 2, 3, 3, 4)
    ]
    assert needed(500, shop, 1.0, 1, 4) == 4
    # Ten clients for 10 s, then twenty for 5 s.
    present = [(0.0, 15.0)] * 10 + [(10.0, 15.0)] * 10
    visit = Visit(0.0, 15.0, present, Requests())
    assert oracle_seconds(visit, shop, 1.0, 1, 4) == pytest.approx(20.0, abs=0.3)


def test_what_is_paid_for_is_every_instance_from_look_to_look() -> None:
    crews = [Crew(0.0, 1, 1), Crew(10.0, 3, 1), Crew(12.0, 2, 2)]
    assert paid_seconds(crews, 5.0, 20.0) == pytest.approx(5 * 1 + 2 * 3 + 8 * 2)


def notes_of(*in_hand: list[int], ejected: int = 0) -> list[Note]:
    """Four a second; of the first so many the first instance is ejected."""
    sent = [0.0] * len(in_hand[0])
    found = []
    for number, outstanding in enumerate(in_hand):
        sent = [total + count for total, count in zip(sent, outstanding, strict=True)]
        out = [number < ejected] + [False] * (len(outstanding) - 1)
        found.append(Note(number * 0.25, outstanding, sent, out))
    return found


def test_requests_are_even_again_when_they_stay_so() -> None:
    skewed, even = [9, 1, 1, 1], [3, 3, 3, 3]
    assert even_after_s(notes_of(*[skewed] * 8, *[even] * 40), 0.0) == pytest.approx(2.0)
    assert even_after_s(notes_of(*[skewed] * 48), 0.0) is None
    assert even_after_s(notes_of(*[skewed, even] * 24), 0.0) is None, "now and then is not even"
    hung = [5, 4, 4, 4]
    assert even_after_s(notes_of(*[hung] * 48, ejected=48), 0.0) is None, "they wait for nothing"


def test_herding_is_what_the_busiest_gets_of_a_second() -> None:
    assert herding(notes_of(*[[8, 0, 0, 0]] * 20), 0.0, 9.0) == pytest.approx(1.0)
    assert herding(notes_of(*[[2, 2, 2, 2]] * 20), 0.0, 9.0) == pytest.approx(0.25)


# The bookshop and its clients


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with shops_running(ShopSetting(concurrency=2, service_s=0.01, spread=0.0), 1) as running:
        yield running[0]


def test_clients_go_through_their_sessions_and_a_cart_lives_as_long_as_one(shop: Shop) -> None:
    crowd = Crowd(ports=[shop.port], clients=3, sessions=2)
    visit = visited(crowd)
    assert len(visit.requests) == 3 * 2 * len(SESSION)
    assert set(visit.requests.status) == {200}
    assert len(visit.present) == 3
    # What was chosen last is what is bought; a stranger's cart is empty.
    stranger = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=10)
    with contextlib.closing(stranger):

        def posted(path: str, cart: str) -> bytes:
            stranger.request("POST", path, headers={"Cookie": f"cart={cart}"})
            return stranger.getresponse().read()

        assert b"added" in posted("/add?book=5", "mine")
        assert b"1 book(s)" in posted("/buy", "mine")
        assert b"0 book(s)" in posted("/buy", "yours")


def test_an_instance_does_what_is_stated_and_what_exceeds_it_waits(shop: Shop) -> None:
    visit = visited(Crowd(ports=[shop.port], clients=8, sessions=1))
    # 80 operations, two at a time, 10 ms each: however fast the machine is.
    assert visit.ended_at - visit.began_at >= 80 / 2 * 0.01 * 0.95


# Each part in small: that everything works, not what it finds


def drawn(section: Section, folder: Path) -> Section:
    for drawing in section.drawings:
        assert (folder / drawing.file).stat().st_size > 1000, drawing.file
    assert section.as_json()["data"]
    return section


@pytest.mark.peers
def test_what_doors_cost_is_measured_in_turn_and_in_pairs(tmp_path: Path) -> None:
    plan = OverheadPlan(
        clients=(3,),
        instances=(1,),
        seconds=0.3,
        warm_s=0.1,
        pairs=2,
        paired=(PairCase(3, 1, 0.005),),
        pair_seconds=0.3,
    )
    try:
        section = drawn(overhead_section(plan, tmp_path, lambda line: None), tmp_path)
    except ServerMissing as missing:
        pytest.skip(str(missing))
    assert [len(one["response"]) for one in section.data["pairs"]] == [2]
    ways = section.data["passages"]["3"]["1"]
    assert set(ways) == set(WAYS)
    assert all(one["requests"] > 5 for one in ways.values()), "every way leads to the shop"
    (failed,) = [bar for bar in section.bars if bar.bar == "requests failed"]
    assert failed.met


def test_a_dead_and_a_silent_instance_are_left_and_a_slow_one_gets_less(tmp_path: Path) -> None:
    plan = SkewPlan(
        instances=3,
        clients=6,
        shop=ShopSetting(concurrency=2, service_s=0.03),
        policies=("better-of-two",),
        calm_s=1.0,
        after_s=5.0,
        answer_timeout_s=1.0,
        client_timeout_s=5.0,
    )
    section = drawn(skew_section(plan, tmp_path, lambda line: None), tmp_path)
    trials = {one["fault"]: one for one in section.data["trials"]}
    assert trials["three times slower"]["failed"] == 0
    # What had been sent and may not be sent again: never more than it had in hand.
    assert trials["dies"]["failed"] <= 6
    assert trials["hangs"]["failed"] <= 6
    assert all(one["requests"] > 100 for one in trials.values())


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_static_and_ours_have_the_same_clients_and_are_judged_alike(tmp_path: Path) -> None:
    plan = KeepingPlan(cases=(Case(1, 2, "figure 21"),), ramp_s=0.5, hold_s=4.0)
    try:
        section = drawn(keeping_section(plan, tmp_path, lambda line: None), tmp_path)
    except ServerMissing as missing:
        pytest.skip(str(missing))
    (outcome,) = section.data["outcomes"]
    assert outcome["static"]["failed"] == outcome["ours"]["failed"] == 0
    assert len(outcome["ours"]["windows"]) == 1
    assert outcome["instance_s"] == pytest.approx(outcome["oracle_s"], rel=0.3)


def test_a_part_that_is_none_is_refused_before_anything_starts() -> None:
    refused = CliRunner().invoke(app, ["lab", "run", "tapas", "--only", "overhaed"])
    assert refused.exit_code != 0
    assert "overhead, agreement, skew" in refused.output.replace("\n", " ")
