"""Telesto's mix on real nodes, and a quick run that leaves a whole report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidegate_lab.bench.queue import ClientsOptions, run_clients
from tidegate_lab.papers.telesto.mix import MixOptions
from tidegate_lab.papers.telesto.phases import TelestoPlan, TelestoSetup, TelestoTrial, run_trial
from tidegate_lab.papers.telesto.run import TelestoOptions, run_telesto

QUICK = TelestoPlan(seconds=0.5, repeats_min=2, repeats_max=2, warm_up_s=0.3)


@pytest.fixture(scope="module")
def trial() -> TelestoTrial:
    """A real one, short."""
    return run_trial(TelestoSetup("nine", MixOptions(clients=9, glance_every=5)), QUICK, print)


def test_a_trial_accounts_for_every_message_and_its_phases_add_up(trial: TelestoTrial) -> None:
    assert trial.messages_per_s.mean > 0
    assert trial.packets_per_message == pytest.approx(2.0, abs=0.5)
    assert trial.phases.requests > 0
    assert trial.phases.sum_over_total == pytest.approx(1.0, abs=0.02)
    assert trial.phases.store_us > 0
    assert {"put", "read hit", "waiting read", "request"} <= set(trial.responses)


def test_a_polling_reader_needs_more_packets_and_loses_nothing() -> None:
    trial = run_trial(
        TelestoSetup("polling", MixOptions(clients=9, retry_delay_s=0.01)), QUICK, print
    )

    assert trial.packets_per_message > 2.0
    assert trial.misses_per_message > 0


def test_the_mix_runs_on_two_nodes() -> None:
    trial = run_trial(TelestoSetup("two nodes", MixOptions(clients=9), nodes=2), QUICK, print)

    assert trial.messages_per_s.mean > 0


def test_more_writers_than_store_connections_wait_for_their_turn() -> None:
    setup = TelestoSetup("crowded", MixOptions(clients=9), writers=3, connections=1)

    assert run_trial(setup, QUICK, print).messages_per_s.mean > 0


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
