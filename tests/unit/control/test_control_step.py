"""One step of control grows as the number of replicas does: counted, not timed.

`benchmarks/test_decision_time.py` and `tidegate bench control` measure how long a step takes.
"""

from __future__ import annotations

import io

import pytest
from operations import operations_of
from rich.console import Console

from tidegate.core.topology import ScalingPolicy
from tidegate_lab.bench.control import ControlOptions, QueuePlant, render_control, run_control


def operations_of_step(replicas: int, policy: ScalingPolicy) -> int:
    """Decode, sense, keep up and decide, for so many replicas under load."""
    plant = QueuePlant(policy, replicas)
    # The first step has no rates yet.
    for second in range(3):
        plant.step(plant.answers(second), float(second))
    answers = plant.answers(3)
    return operations_of(lambda: plant.step(answers, 3.0))


@pytest.mark.parametrize("policy", [ScalingPolicy.CLIENTS, ScalingPolicy.FEED_FORWARD])
def test_a_step_for_four_times_the_replicas_takes_about_four_times_the_operations(
    policy: ScalingPolicy,
) -> None:
    few, many = operations_of_step(100, policy), operations_of_step(400, policy)

    assert few > 100
    # Four is linear, sixteen is quadratic.
    assert many < 6 * few


def test_the_benchmark_of_control_measures_every_size_under_every_policy() -> None:
    said: list[str] = []
    report = run_control(ControlOptions(replicas=(10, 20), steps=2), said.append)

    assert [(one.policy, one.replicas) for one in report.steps] == [
        (policy, replicas)
        for policy in ("load", "clients", "feed-forward")
        for replicas in (10, 20)
    ]
    assert len(said) == len(report.steps)
    # Nothing was measured for a thousand replicas.
    assert [bar.figure is None for bar in report.bars] == [True, False]
    page = io.StringIO()
    render_control(report, Console(file=page, width=120))
    assert "feed-forward" in page.getvalue()
