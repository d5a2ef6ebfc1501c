"""A sweep of Telesto's mix draws its trials and says what they found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tidegate_lab.papers.telesto import sweeps
from tidegate_lab.papers.telesto.mix import TYPES, MixOptions
from tidegate_lab.papers.telesto.phases import (
    PhaseTable,
    ResponseTime,
    TelestoPlan,
    TelestoSetup,
    TelestoTrial,
    estimate,
)
from tidegate_lab.papers.telesto.sweeps import SweepValues
from tidegate_lab.report import ExperimentSection

PLAN = TelestoPlan(seconds=0.5, repeats_min=2, repeats_max=2, warm_up_s=0.3)


@pytest.fixture
def trial() -> TelestoTrial:
    """Of nine clients for a second."""
    response = ResponseTime(
        count=100, mean_ms=2.0, deviation_ms=0.5, p50_ms=2.0, p99_ms=4.0, max_ms=6.0
    )
    return TelestoTrial(
        label="nine",
        setup=TelestoSetup("nine", MixOptions(clients=9)),
        messages_per_s=estimate([1000.0, 1010.0]),
        packets_per_s=estimate([2000.0, 2020.0]),
        packets_per_message=2.0,
        misses_per_message=0.0,
        responses=dict.fromkeys(TYPES, response),
        phases=PhaseTable(
            requests=2000,
            wait_client_us=100.0,
            parse_us=10.0,
            store_us=500.0,
            wait_message_us=200.0,
            respond_us=20.0,
            total_us=830.0,
            total_by_clients_us=850.0,
            store_us_per_put=900.0,
            worker_idle_us=50.0,
            worker_busy_share=0.8,
            messages_per_commit=5.0,
            commits_per_s=200.0,
        ),
        left_over=0,
        rounds=[1000.0, 1010.0],
        taken_by_others=0.0,
    )


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
    make: Callable[..., ExperimentSection],
    trials: int,
    trial: TelestoTrial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given trials that all found the same
    found: list[TelestoTrial] = []

    def measured(setup: TelestoSetup, plan: TelestoPlan, progress: object) -> TelestoTrial:
        found.append(msgspec.structs.replace(trial, label=setup.label, setup=setup))
        return found[-1]

    monkeypatch.setattr(sweeps, "run_trial", measured)

    section = make(SweepValues.quick(), PLAN, print, tmp_path)

    assert len({each.label for each in found}) == len(found) == trials
    assert section.source.startswith("Telesto §5.")
    assert (tmp_path / section.drawings[0].file).stat().st_size > 5000
    assert set(section.data) == {each.label for each in found}
    # They are all the same trial here: none is better than another.
    assert all(bar.met is not bar.strict for bar in section.bars)
