"""How long one decision and one whole step of control take, and how that grows."""

from __future__ import annotations

import math
import time

import pytest
from figures import Figure

from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.core.decisions import QueueSample, ReplicaSample
from tidegate.core.topology import Range, Scaling, ScalingPolicy
from tidegate.laws.scaling.wait import WaitTarget
from tidegate_lab.bench.control import ControlOptions, run_control


def decision_ms(count: int, policy: ScalingPolicy) -> float:
    """The fastest of some decisions for so many replicas, in processor time."""
    replicas = [
        ReplicaSample(
            number=number,
            waiting=number % 500,
            consumers=2,
            producers=1,
            share=1.0 / count,
            consumed_per_s=100.0,
            age_s=100.0,
        )
        for number in range(1, count + 1)
    ]
    autoscaler = Autoscaler(Scaling(policy=policy, replicas=Range(1, 5000)))
    best_s = math.inf
    for turn in range(7):
        sample = QueueSample(
            queue="orders", at=1000.0 + turn, replicas=replicas, arrived_per_s=100.0
        )
        began = time.process_time()
        autoscaler.decide(sample, WaitTarget(wait_s=5.0))
        best_s = min(best_s, time.process_time() - began)
    return 1e3 * best_s


@pytest.mark.parametrize("policy", list(ScalingPolicy))
def test_time_of_a_decision(policy: ScalingPolicy, figure: Figure) -> None:
    thousand = decision_ms(1000, policy)
    figure(f"decision for 1,000 replicas, {policy}", thousand, "ms", "below 50")
    growth = decision_ms(4000, policy) / thousand
    figure(f"decision for 4,000 replicas over 1,000, {policy}", growth, "times", "4, below 8")


def test_time_of_a_step_of_control(figure: Figure) -> None:
    policies = [ScalingPolicy.CLIENTS, ScalingPolicy.FEED_FORWARD]
    report = run_control(ControlOptions(replicas=(250, 500, 1000), steps=8, policies=policies))
    for bar in report.bars:
        assert bar.figure is not None
        figure(bar.bar, bar.figure, bar.unit, f"below {bar.limit:g}")
