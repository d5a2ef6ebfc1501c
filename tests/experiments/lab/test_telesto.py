"""The mix keeps its promises, estimates are honest, and a quick run leaves a whole report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tidegate.lab.bench.clients import ClientsOptions, run_clients
from tidegate.lab.report.figures import Line, Panel, draw_panels
from tidegate.lab.report.page import Page, write_page
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.telesto import sweeps
from tidegate.lab.telesto.confidence import estimate, student_t_975
from tidegate.lab.telesto.mix import ONE_WAY, PAIR, POOL, MixOptions, roles_of
from tidegate.lab.telesto.run import TelestoOptions, run_telesto
from tidegate.lab.telesto.stability import drift_of
from tidegate.lab.telesto.sweeps import SweepValues
from tidegate.lab.telesto.tally import PUT, READ_MISS, Sample, Tally, window_of
from tidegate.lab.telesto.trial import Plan, Setup, Trial, run_trial
from tidegate.report.chart import Table

QUICK = Plan(seconds=0.5, repeats_min=2, repeats_max=2, warm_up_s=0.3)


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


def test_one_repeat_says_nothing_about_its_own_interval() -> None:
    alone = estimate([100.0])

    assert alone.half_width is None
    assert not alone.sure


def test_a_window_is_what_happened_between_two_samples_of_every_process() -> None:
    processes = [Tally(), Tally()]
    processes[0].put(0.010)
    # As they travel from a process to its parent: a sample does not grow afterwards.
    before = msgspec.json.decode(
        msgspec.json.encode([tally.sample() for tally in processes]), type=list[Sample]
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


@pytest.fixture(scope="module")
def trial() -> Trial:
    """A real one, short."""
    return run_trial(Setup("nine", MixOptions(clients=9, glance_every=5)), QUICK, print)


def test_a_trial_accounts_for_every_message_and_its_phases_add_up(trial: Trial) -> None:
    assert trial.messages_per_s.mean > 0
    assert trial.packets_per_message == pytest.approx(2.0, abs=0.5)
    assert trial.phases.requests > 0
    assert trial.phases.sum_over_total == pytest.approx(1.0, abs=0.02)
    assert trial.phases.store_us > 0
    assert {"put", "read hit", "waiting read", "request"} <= set(trial.responses)


def test_a_polling_reader_needs_more_packets_and_loses_nothing() -> None:
    trial = run_trial(Setup("polling", MixOptions(clients=9, retry_delay_s=0.01)), QUICK, print)

    assert trial.packets_per_message > 2.0
    assert trial.misses_per_message > 0


def test_the_mix_runs_on_two_nodes() -> None:
    trial = run_trial(Setup("two nodes", MixOptions(clients=9), nodes=2), QUICK, print)

    assert trial.messages_per_s.mean > 0


def test_more_writers_than_store_connections_wait_for_their_turn() -> None:
    setup = Setup("crowded", MixOptions(clients=9), writers=3, connections=1)

    assert run_trial(setup, QUICK, print).messages_per_s.mean > 0


@pytest.mark.parametrize(
    ("make", "trials"),
    [
        (sweeps.writers_section, 2),
        (sweeps.connections_section, 2),
        (sweeps.both_section, 2),
        (sweeps.retry_section, 3),
        (sweeps.clients_section, 4),
        (sweeps.storeless_section, 4),
    ],
)
def test_a_sweep_draws_and_says_what_its_trials_found(
    make: Callable[..., Section],
    trials: int,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given trials whose figures are those of a real one: settings are tried above
    found: list[Trial] = []

    def measured(setup: Setup, plan: Plan, progress: object) -> Trial:
        found.append(msgspec.structs.replace(trial, label=setup.label, setup=setup))
        return found[-1]

    monkeypatch.setattr(sweeps, "run_trial", measured)

    section = make(SweepValues.quick(), QUICK, print, tmp_path)

    assert len({each.label for each in found}) == len(found) == trials
    assert section.source.startswith("Telesto §5.")
    assert (tmp_path / section.drawings[0].file).stat().st_size > 5000
    assert set(section.data) == {each.label for each in found}
    # They are all the same trial here: none is better than another.
    assert all(bar.met is not bar.strict for bar in section.bars)


def test_a_quick_run_leaves_json_figures_and_a_page_of_its_own(tmp_path: Path) -> None:
    options = TelestoOptions(
        only=["stability", "distribution", "phases"],
        stability_seconds=2.0,
        results=tmp_path,
        name="quick",
        quick=True,
    )

    report = run_telesto(options)

    assert not report.failed
    assert [section.name for section in report.sections] == list(options.only)
    for name in options.only:
        found = msgspec.json.decode((report.folder / f"{name}.json").read_bytes())
        assert found["paper"]
        assert found["ours"]
        assert (report.folder / f"{name}.png").stat().st_size > 5000
    page = report.page.read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http://" not in page
    assert "https://" not in page


def test_the_clients_benchmark_reports_medians_and_a_verdict() -> None:
    report = run_clients(ClientsOptions.quick())

    assert set(report.messages_per_s) == {"9", "18"}
    assert report.as_json()["bars"][0]["met"] in (True, False)


def test_an_unknown_experiment_is_named_and_the_known_ones_listed() -> None:
    with pytest.raises(ValueError, match=r"'stabilty'.*stability"):
        TelestoOptions(only=["stabilty"]).experiments()


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    draw_panels([Panel("a", "x", "y", [Line("messages", [1, 2], [3, 4])])], tmp_path / "a.png")
    section = Section(
        name="a",
        title="<b>",
        source="&",
        paper="p",
        ours="o",
        drawings=[Drawing("a.png", "'\"")],
        tables=[Table("c", ["x"], [["<script>"]])],
    )

    page = write_page(Page("t", "Telesto", "i", [section], {}, "now"), tmp_path).read_text()

    assert "<script>" not in page
    assert "&lt;b&gt;" in page
