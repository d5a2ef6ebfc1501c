"""The replicated queues experiments: their arithmetic, their simulation and their page."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from whole_page import assert_whole

from tidegate.simulation import plant
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    Scale,
    average,
    median_placement,
    rates_of,
    series_of,
)
from tidegate_lab.papers.replicated.crew import (
    MessageLedger,
    PayloadDamaged,
    QueueTotalsRow,
    identity_of,
    make_payload,
)
from tidegate_lab.papers.replicated.distribution import (
    DEFAULT,
    ELECTED,
    EXCHANGED,
    Distribution,
    section_of,
)
from tidegate_lab.papers.replicated.run import ReplicatedOptions, run_replicated
from tidegate_lab.papers.replicated.scenarios import MIGRATION, STILL
from tidegate_lab.papers.replicated.simulated import distributed
from tidegate_lab.report import ExperimentSection, Page, write_page


def row(at_s: float, produced: int, consumed: int, clients: int = 3) -> QueueTotalsRow:
    return QueueTotalsRow(at_s, produced, consumed, produced - consumed, 0, clients)


def test_rates_leave_out_both_edges_and_the_time_with_fewer_clients() -> None:
    slow_start = [row(float(second), 10 * second, 5 * second) for second in range(6)]
    steady = [row(5.0 + n, 50 + 100 * n, 25 + 90 * n) for n in range(1, 21)]
    alone = [row(26.0, 2050, 1900, clients=1), row(27.0, 2050, 2050, clients=0)]

    rates = rates_of([*slow_start, *steady, *alone])

    assert rates.edge_s == 5.0
    assert rates.produced_per_s == pytest.approx(100.0)
    assert rates.consumed_per_s == pytest.approx(90.0)
    assert rates.throughput_per_s == pytest.approx(90.0)
    assert rates.imbalance == pytest.approx(0.1)


def test_a_short_run_leaves_out_a_fifth_at_either_end() -> None:
    rates = rates_of([row(float(n), 100 * n, 100 * n) for n in range(11)])

    assert rates.edge_s == pytest.approx(2.0)
    assert rates.seconds == pytest.approx(6.0)


def test_the_mean_of_runs_is_the_mean_of_their_rates() -> None:
    one = rates_of([row(float(n), 100 * n, 100 * n) for n in range(11)])
    other = rates_of([row(float(n), 200 * n, 50 * n) for n in range(11)])

    both = average([one, other])

    assert both.produced_per_s == pytest.approx(150.0)
    assert both.consumed_per_s == pytest.approx(75.0)


def test_a_series_is_what_changed_between_two_looks() -> None:
    series = series_of([row(0.0, 0, 0), row(2.0, 10, 4), row(3.0, 20, 20)])

    assert series.produced_per_s == [5.0, 10.0]
    assert series.consumed_per_s == [2.0, 16.0]


def test_a_ledger_counts_what_comes_twice_and_whether_it_said_so() -> None:
    ledger = MessageLedger()
    for identity, flagged in ((1, False), (2, False), (2, True), (1, False)):
        ledger.note(identity, flagged=flagged)

    balance = ledger.balance()

    assert (balance.distinct, balance.total) == (2, 3)
    assert (balance.repeated, balance.unflagged) == (2, 1)


def test_a_message_says_who_put_it_and_notices_damage() -> None:
    payload = make_payload(7, 9)

    assert len(payload) == 1024
    assert identity_of(payload) == 7 << 32 | 9
    with pytest.raises(PayloadDamaged):
        identity_of(payload[:500] + b"?" + payload[501:])


def test_the_default_arrival_is_the_middle_one_of_all() -> None:
    gaps = sorted(
        abs(sum(where[:4]) / 4 - sum(where[4:]) / 8)
        for where in itertools.product((0, 1), repeat=12)
    )

    producers, consumers = median_placement(4, 8)

    assert abs(producers / 4 - consumers / 8) == gaps[len(gaps) // 2]
    assert (producers, consumers) == (3, 4)


def test_an_unknown_experiment_is_named_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match=r"'fig99'.*fig4"):
        ReplicatedOptions(only=["fig99"]).experiments()


def test_a_page_says_first_what_it_missed(tmp_path: Path) -> None:
    sections = [
        ExperimentSection("a", "A", "s", "p", "o", bars=[Bar("speed", 0.5, 0.8, "×")]),
        ExperimentSection("b", "B", "s", "p", "o", bars=[Bar("length", 0.9, 0.8, "×")]),
    ]

    page = write_page(
        Page("t", "them", "introduction", sections, {}, "now", {"c": "no disk"}), tmp_path
    ).read_text()

    assert page.index("Missed:") < page.index("introduction")
    assert "A: speed: 0.5 ×, wanted ≥ 0.8 ×" in page
    assert "c did not come to its end: no disk" in page
    assert "B: length" not in page.partition("introduction")[0]


def test_simulated_experiments_meet_every_bar_and_leave_a_whole_page(tmp_path: Path) -> None:
    report = run_replicated(ReplicatedOptions(simulate=True, results=tmp_path, name="simulated"))

    assert [section.name for section in report.sections] == ["scenarios", "fig8", "fig10"]
    assert [bar.bar for bar in report.bars if not bar.met] == []
    page = report.page.read_text()
    assert "in virtual time" in page
    assert "only ratios between runs are found" in page
    # What election brings over exchange alone has a row of its own.
    assert "with exchange alone (no bar)" in page
    fig8 = msgspec.json.decode((report.folder / "fig8.json").read_bytes())
    assert fig8["data"]["over_exchange"] == pytest.approx(1.0, abs=0.02)
    assert "Over exchange alone election brings 1.00 times" in fig8["ours"]
    assert_whole(page, images=3)


def test_simulated_clients_are_placed_by_the_products_law_of_election() -> None:
    runs = distributed()

    assert runs["elected", MIGRATION].placed == [(2, 4), (2, 4)]
    # As they came: the middle one of all random arrivals, by hand.
    assert runs["as they came", STILL].placed == [(3, 4), (1, 4)]


def test_where_the_law_puts_everyone_on_one_replica_the_simulation_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plant, "elect", lambda role, replicas: 1)

    assert distributed()["elected", MIGRATION].placed == [(4, 8), (0, 0)]


def test_gain_of_election_is_also_stated_over_exchange(tmp_path: Path) -> None:
    def spread(label: str, consumed: float) -> Distribution:
        rows = [row(float(n), round(200 * n), round(consumed * n)) for n in range(11)]
        return Distribution(label, rates_of(rows), series_of(rows), 10.0, {1: 2}, {1: 4})

    found = [spread(DEFAULT, 144), spread(EXCHANGED, 178), spread(ELECTED, 180)]
    section = section_of(found, Scale(), 0.0, tmp_path)

    assert "Over exchange alone election brings 1.01 times as much." in section.ours
    assert section.tables[1].rows == [
        ["held still: no exchange, no migration (the bar)", "1.25", "1.17"],
        ["with exchange alone (no bar)", "1.01", "not said"],
    ]


def test_simulate_refuses_experiments_with_real_queues() -> None:
    with pytest.raises(ValueError, match="nothing is simulated of it"):
        ReplicatedOptions(simulate=True, only=["fig4"]).experiments()
