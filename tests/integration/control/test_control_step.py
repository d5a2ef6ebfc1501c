"""One step of control for a thousand replicas, numbers and all: quick, and it grows as they do."""

from __future__ import annotations

from tidegate.core.scaling import ScalingPolicy
from tidegate.lab.bench.control import ControlOptions, run_control


def test_a_step_for_a_thousand_replicas_takes_less_than_fifty_milliseconds_and_grows_linearly() -> (
    None
):
    policies = [ScalingPolicy.CLIENTS, ScalingPolicy.FEED_FORWARD]
    report = run_control(ControlOptions(replicas=(250, 500, 1000), steps=8, policies=policies))
    assert [bar.met for bar in report.bars] == [True, True], report.bars
