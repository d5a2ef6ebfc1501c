"""Telesto's mix keeps its proportions, estimates are honest, and pages escape what they show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.papers.telesto.mix import (
    ONE_WAY,
    PAIR,
    POOL,
    PUT,
    READ_MISS,
    ClientCounters,
    TallySample,
    roles_of,
    window_of,
)
from tidegate_lab.papers.telesto.phases import drift_of, estimate, student_t_975
from tidegate_lab.papers.telesto.run import TelestoOptions
from tidegate_lab.report import Drawing, ExperimentSection, Page, write_page


@pytest.mark.parametrize("clients", [9, 90, 270])
def test_the_mix_has_telestos_proportions(clients: int) -> None:
    roles = roles_of(clients)

    kinds = Counter(role.kind for role in roles)

    assert kinds == {ONE_WAY: 5 * clients // 9, PAIR: 2 * clients // 9, POOL: 2 * clients // 9}
    assert [role.number for role in roles] == list(range(clients))
    for kind in (PAIR, POOL):
        asking = sum(role.asks for role in roles if role.kind == kind)
        assert asking == clients // 9
    for role in roles:
        if role.partner is not None:
            assert roles[role.partner].partner == role.number


def test_a_mix_that_is_not_made_of_ninths_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 9"):
        roles_of(10)


def test_students_t_agrees_with_its_table_and_continues_it() -> None:
    assert student_t_975(1) == 12.706
    assert student_t_975(30) == 2.042
    # Printed tables give 2.0395 for 31 and 1.9840 for 100 degrees of freedom.
    assert student_t_975(31) == pytest.approx(2.0395, abs=2e-4)
    assert student_t_975(100) == pytest.approx(1.9840, abs=2e-4)


def test_an_estimate_is_sure_only_when_its_interval_is_narrow() -> None:
    steady = estimate([100.0, 101.0, 99.0, 100.5])
    jumpy = estimate([100.0, 150.0, 60.0])

    assert steady.sure
    assert not jumpy.sure
    assert steady.half_width == pytest.approx(
        3.182 * statistics.stdev([100.0, 101.0, 99.0, 100.5]) / 2
    )


def test_single_measurement_has_no_interval() -> None:
    alone = estimate([100.0])

    assert alone.half_width is None
    assert not alone.sure


def test_a_window_is_what_happened_between_two_samples_of_every_process() -> None:
    processes = [ClientCounters(), ClientCounters()]
    processes[0].put(0.010)
    # As they travel from a process to its parent: a sample does not grow afterwards.
    before = msgspec.json.decode(
        msgspec.json.encode([tally.sample() for tally in processes]), type=list[TallySample]
    )
    for tally in processes:
        tally.put(0.002)
        tally.hit(0.001, waited=False)
        tally.miss(0.003, waited=False)
        tally.request(0.004)
        tally.tick(7)

    window = window_of(before, [tally.sample() for tally in processes])

    assert (window.puts, window.messages, window.packets, window.misses) == (4, 4, 10, 2)
    assert window.timings[PUT].count == 2
    assert window.timings[PUT].mean_s == pytest.approx(0.002)
    assert window.timings[READ_MISS].bins[3] == 2
    assert [(row.second, row.packets) for row in window.rows] == [(7, 11)]  # with the first put


def test_drift_compares_the_halves() -> None:
    assert drift_of([100.0, 100.0, 90.0, 90.0]) == pytest.approx(0.10)
    assert math.isnan(drift_of([100.0]))


def test_an_unknown_experiment_is_named_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match=r"'stabilty'.*stability"):
        TelestoOptions(only=["stabilty"]).experiments()


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    draw_panels([Panel("a", "x", "y", [Line("messages", [1, 2], [3, 4])])], tmp_path / "a.png")
    section = ExperimentSection(
        name="a",
        title="<b>",
        source="&",
        paper="p",
        ours="o",
        drawings=[Drawing("a.png", "'\"")],
        tables=[ReportTable("c", ["x"], [["<script>"]])],
    )

    page = write_page(Page("t", "Telesto", "i", [section], {}, "now"), tmp_path).read_text()

    assert "<script>" not in page
    assert "&lt;b&gt;" in page
