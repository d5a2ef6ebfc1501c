"""The TAPAS experiments: their arithmetic, what they draw and what they refuse."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner
from whole_page import drawn

from tidegate.cli.app import app
from tidegate.doors import DoorSettings
from tidegate.doors.haproxy.configuration import configuration
from tidegate_lab.papers.tapas.clients import (
    NO_ANSWER,
    PopulationRecord,
    RequestRecords,
    breached_s,
    needed,
    oracle_seconds,
    paid_seconds,
    warned_s,
    windows_of,
)
from tidegate_lab.papers.tapas.gateway_process import GatewaySample
from tidegate_lab.papers.tapas.keeping import (
    AgreementComparison,
    AgreementRun,
    agreement_run,
    keeping_bars,
    section_of,
)
from tidegate_lab.papers.tapas.overhead import (
    PairedRuns,
    mean_ratio,
    pair_order,
    ratio_at_least,
    ratio_at_most,
)
from tidegate_lab.papers.tapas.shops import (
    PAIR_CASES,
    AgreementPlan,
    Case,
    InstanceCount,
    OverheadPlan,
    PairCase,
    ShopSetting,
)
from tidegate_lab.papers.tapas.skew import even_after_s, herding
from tidegate_lab.peers.http_servers import plain_configuration
from tidegate_lab.report import write_json


def test_equal_pairs_leave_no_doubt_and_scattered_ones_widen_the_bound() -> None:
    assert ratio_at_most([1.01] * 10) == pytest.approx(1.01)
    assert mean_ratio([2.0, 0.5]) == pytest.approx(1.0)
    narrow, wide = [0.99, 1.01] * 5, [0.9, 1.1] * 5
    assert 1.0 < ratio_at_most(narrow) < ratio_at_most(wide)
    assert ratio_at_least(wide) < ratio_at_least(narrow) < 1.0
    # Of ten: t(0.95, 9) is 1.833, and the deviation of the logarithms 0.0105.
    assert ratio_at_most(narrow) == pytest.approx(1.0 + 1.833 * 0.01054 / 10**0.5, abs=1e-4)
    assert ratio_at_most([1.0]) == float("inf"), "one pair says nothing"


def visit_of(*times_s: float, each_s: float = 0.1, status: int = 200) -> PopulationRecord:
    """Requests that ended one after the other, and took so long."""
    requests = RequestRecords()
    for number, took_s in enumerate(times_s):
        requests.add(100.0 + number * each_s, took_s, status)
    over_at = 100.0 + len(times_s) * each_s
    return PopulationRecord(100.0, over_at, [(100.0, over_at)], requests)


def test_a_window_is_warned_of_and_breached_by_its_95th_percentile() -> None:
    met, warned, breached = [0.3] * 50, [0.3] * 47 + [0.95] * 3, [0.3] * 47 + [1.2] * 3
    rare = [0.3] * 48 + [9.0] * 2
    windows = windows_of(visit_of(*met, *warned, *breached, *rare, *[0.3] * 20))
    assert [one.verdict for one in windows] == ["met", "warned", "breached", "met"]
    assert (warned_s(windows), breached_s(windows)) == (10.0, 5.0)


def visit_of_parts(*parts: tuple[int, float, int]) -> PopulationRecord:
    """Ten requests a second: so many, that took so long, with this status; one part follows one."""
    requests = RequestRecords()
    for count, took_s, status in parts:
        for _ in range(count):
            requests.add(100.0 + len(requests) * 0.1, took_s, status)
    over_at = 100.0 + len(requests) * 0.1
    return PopulationRecord(100.0, over_at, [(100.0, over_at)], requests)


def test_failed_requests_have_taken_longer_than_any_promise() -> None:
    refused = visit_of(*[0.01] * 100, status=503)
    assert [one.verdict for one in windows_of(refused)] == ["breached", "breached"]
    assert [one.p95_s for one in windows_of(refused)] == [math.inf, math.inf]
    assert refused.requests.failed == 100

    outage = windows_of(visit_of_parts((100, 0.3, 200), (500, 0.001, 503)))
    assert breached_s(outage) == 50.0, "10 s of answers and 50 s of refusals"

    few = windows_of(visit_of_parts((48, 0.3, 200), (2, 0.001, 503)))
    many = windows_of(visit_of_parts((47, 0.3, 200), (3, 0.001, 503)))
    assert [one.verdict for one in (*few, *many)] == ["met", "breached"], "one in twenty may be"


def test_a_window_in_which_clients_got_nothing_is_breached_and_without_clients_is_none() -> None:
    requests = RequestRecords()
    requests.add(101.0, 0.3, 200)
    # Nobody hears anything for 30 s; then they go, and others come.
    requests.add(131.0, 30.0, NO_ANSWER)
    requests.add(146.0, 0.3, 200)
    visit = PopulationRecord(100.0, 150.0, [(100.0, 131.0), (145.5, 150.0)], requests)
    windows = windows_of(visit)
    # The last one of those that waited is in the window that began at 130 s.
    expected = [(5.0 * number, "breached") for number in range(7)] + [(45.0, "met")]
    assert [(one.begins_s, one.verdict) for one in windows] == expected


def test_request_waiting_beyond_the_promise_counts_in_its_window() -> None:
    requests = RequestRecords()
    for number in range(50):
        requests.add(100.1 + number * 0.09, 0.3, 200)
    visit = PopulationRecord(100.0, 110.0, [(100.0, 110.0)], requests)
    assert windows_of(visit)[0].verdict == "met"
    for _ in range(3):
        # Since 103 s.
        requests.add(109.0, 6.0, 200)
    assert [one.verdict for one in windows_of(visit)] == ["breached", "breached"]
    assert windows_of(visit)[0].p95_s == 0.3, "of those that were over by then"


def test_failures_are_neither_responses_nor_throughput() -> None:
    mixed = visit_of_parts((10, 0.4, 200), (30, 0.001, 503), (10, 0.2, 404), (5, 9.0, NO_ANSWER))
    assert mixed.requests.mean_s == pytest.approx(0.3)
    assert len(mixed.requests.answered_s) == 20
    assert visit_of(0.001, status=503).requests.mean_s == math.inf, "no answer is not a quick one"


def test_an_outage_is_drawn_told_of_and_written_down(tmp_path: Path) -> None:
    case = Case(1, 1, "figure 21")
    visit = visit_of_parts((100, 0.3, 200), (200, 0.001, 503))
    kept = agreement_run(AgreementPlan(cases=(case,), ramp_s=10.0), case, visit)
    assert kept.response_s == math.inf, "all that was answered came before all were there"
    assert (kept.throughput_per_s, kept.breached_s, kept.failed) == (0.0, 20.0, 200)
    outcome = AgreementComparison(
        case,
        kept,
        kept,
        30.0,
        30.0,
        [InstanceCount(0.0, 1, 1), InstanceCount(30.0, 1, 1)],
        [(0.0, 1)],
    )
    section = drawn(section_of(AgreementPlan(), [outcome], tmp_path, others=0.0), tmp_path)
    write_json(section.as_json(), tmp_path / "agreement.json")
    json.loads((tmp_path / "agreement.json").read_text())
    assert "no answer" in str(section.tables)


def test_the_oracle_takes_as_few_as_answer_all_clients_before_the_breach() -> None:
    shop = ShopSetting(concurrency=4, service_s=0.27)
    assert [needed(clients, shop, 1.0, 1, 4) for clients in (0, 10, 14, 15, 20, 30, 40, 50)] == [
        *(1, 1, 1, 2, 2, 3, 3, 4)
    ]
    assert needed(500, shop, 1.0, 1, 4) == 4
    # Ten clients for 10 s, then twenty for 5 s.
    present = [(0.0, 15.0)] * 10 + [(10.0, 15.0)] * 10
    visit = PopulationRecord(0.0, 15.0, present, RequestRecords())
    assert oracle_seconds(visit, shop, 1.0, 1, 4) == pytest.approx(20.0, abs=0.3)


def test_paid_seconds_sum_the_instances_between_samples() -> None:
    crews = [InstanceCount(0.0, 1, 1), InstanceCount(10.0, 3, 1), InstanceCount(12.0, 2, 2)]
    assert paid_seconds(crews, 5.0, 20.0) == pytest.approx(5 * 1 + 2 * 3 + 8 * 2)


def outcome_of(case: Case, instance_s: float, oracle_s: float) -> AgreementComparison:
    kept = AgreementRun(0.5, 20.0, [], 0.0, 0.0, 100, 0)
    return AgreementComparison(case, kept, kept, instance_s, oracle_s, [], [])


def test_a_case_that_takes_too_many_instances_is_not_hidden_by_those_that_cannot() -> None:
    outcomes = [
        outcome_of(Case(1, 10, "figure 21"), 167.0, 100.0),
        outcome_of(Case(2, 10, "figure 22"), 900.0, 900.0),
        # Spares are paid for by who asks for them.
        outcome_of(Case(2, 50, "figure 17", spares=2), 400.0, 200.0),
    ]
    bars = {bar.bar: bar for bar in keeping_bars(outcomes)}
    worst = bars["ours: instance-seconds, of the oracle's, worst case"]
    together = bars["ours: instance-seconds, of the oracle's, all cases together"]
    assert (worst.figure, worst.met, worst.beyond_the_issue) == (1.67, False, False)
    assert together.figure == pytest.approx(1.067)
    assert together.met


def test_barred_pairs_cover_one_to_four_instances_and_each_door_goes_first_as_often() -> None:
    pairs = OverheadPlan().length.pairs
    assert pairs >= 10
    barred = [case for case in PAIR_CASES if case.is_barred]
    assert {case.clients for case in barred} == {15, 50}
    for case in barred:
        turns = list(itertools.islice(pair_order(case), pairs))
        assert {instances for instances, _ in turns} == {1, 2, 3, 4}
        assert sum(ours_first for _, ours_first in turns) == pairs / 2
        for count in (1, 2, 3, 4):
            firsts = [ours_first for instances, ours_first in turns if instances == count]
            assert abs(firsts.count(True) - firsts.count(False)) <= 1
    alone = list(itertools.islice(pair_order(PairCase(15, (3,), 0.0)), 4))
    assert alone == [(3, False), (3, True), (3, False), (3, True)]


def test_a_bound_is_of_all_numbers_of_instances_and_the_rows_of_each_are_shown() -> None:
    case = PairCase(15, (1, 2), 0.02)
    pairs = PairedRuns(
        case, [1, 2, 1, 2], [1.0, 1.1, 1.0, 1.1], [1.0] * 4, 1, 2, [1e-5] * 4, [1e-5] * 4
    )
    assert pairs.title == "15 clients, 1 to 2 instances, 20 ms each"
    assert pairs.before(2).response == [1.1, 1.1]
    assert pairs.before(2).title == "15 clients, 2 instances, 20 ms each"
    assert ratio_at_most(pairs.response) > ratio_at_most(pairs.before(2).response) == 1.1
    assert pairs.failed == 3, "plain's failures count as ours do"


def test_plain_haproxy_reuses_connections_as_ours_does() -> None:
    def reuse_of(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if "http-reuse" in line]

    plain = plain_configuration([81], bind="127.0.0.1:80", runtime_socket="/tmp/x")
    ours = configuration(
        DoorSettings("shop"),
        [],
        runtime_socket="/tmp/x",
        listener_fd=3,
        log_fd=4,
        token="",
        in_flight_max=1,
        kept=1,
    )
    assert reuse_of(plain) == reuse_of(ours) == ["http-reuse always"]


def notes_of(*in_hand: list[int], ejected: int = 0) -> list[GatewaySample]:
    """Four a second; of the first so many the first instance is ejected."""
    sent = [0.0] * len(in_hand[0])
    found = []
    for number, outstanding in enumerate(in_hand):
        sent = [total + count for total, count in zip(sent, outstanding, strict=True)]
        out = [number < ejected] + [False] * (len(outstanding) - 1)
        found.append(GatewaySample(number * 0.25, outstanding, sent, out))
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


def test_a_part_that_is_none_is_refused_before_anything_starts() -> None:
    refused = CliRunner().invoke(app, ["lab", "run", "tapas", "--only", "overhaed"])
    assert refused.exit_code != 0
    assert "overhead, whole, agreement, skew" in refused.output.replace("\n", " ")
