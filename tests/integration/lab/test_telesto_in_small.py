"""Telesto's mix on a real node, for a second: the experiment runs, and its accounts agree."""

from __future__ import annotations

import pytest

from tidegate_lab.papers.telesto.mix import MixOptions
from tidegate_lab.papers.telesto.phases import TelestoPlan, TelestoSetup, run_trial


def test_a_short_trial_counts_messages_and_its_phases_add_up() -> None:
    plan = TelestoPlan(seconds=0.5, repeats_min=2, repeats_max=2, warm_up_s=0.3)
    said: list[str] = []

    trial = run_trial(
        TelestoSetup("nine", MixOptions(clients=9, glance_every=5)), plan, said.append
    )

    assert trial.messages_per_s.repeats == len(trial.rounds) == 2
    assert trial.messages_per_s.mean > 0
    assert trial.phases.requests > 0
    assert trial.phases.sum_over_total == pytest.approx(1.0, abs=0.02)
    assert trial.phases.store_us > 0
    assert "put" in trial.responses
    assert [line.startswith("nine: ") for line in said] == [True]
