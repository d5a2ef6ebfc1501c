"""What counts as met, where chance has a say."""

from __future__ import annotations

import pytest

from tidegate.core.topology import ScalingPolicy
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.elastic.contest import Score
from tidegate_lab.papers.elastic.traces import _paired_bar


@pytest.mark.parametrize(
    ("figure", "half_width", "verdict"),
    [
        (-23.5, 11.9, "met"),
        (-23.5, 30.0, "not distinguishable"),
        (23.5, 30.0, "not distinguishable"),
        (23.5, 11.9, "not met"),
        (0.0, 0.0, "not distinguishable"),
        (-23.5, None, "met"),
        (None, None, "not measured"),
    ],
)
def test_a_difference_whose_interval_includes_the_limit_is_not_met(
    figure: float | None, half_width: float | None, verdict: str
) -> None:
    bar = Bar("a difference", figure, 0.0, "s", at_most=True, half_width=half_width)

    assert bar.verdict == verdict
    assert (bar.met is True) == (verdict == "met")


@pytest.mark.parametrize(("figure", "is_met"), [(0.9, True), (1.0, False), (1.1, False)])
def test_a_strict_bar_is_not_met_by_its_own_limit(figure: float, is_met: bool) -> None:
    bar = Bar("packets", figure, 1.0, "×", at_most=True, strict=True)

    assert bar.met is is_met
    assert bar.sign == "<"


def _score(number: int, machine_s: float) -> Score:
    return Score(number, "ramp", 0.0, machine_s, 0, 0, 0.0)


def test_policies_are_compared_trace_by_trace() -> None:
    # Traces differ a hundredfold, policies by one each: means alone would show nothing.
    theirs = [_score(number, 100.0 * 2**number) for number in range(10)]
    ours = [_score(one.number, one.machine_s - 1 - 0.1 * (one.number % 2)) for one in theirs]
    scores = {ScalingPolicy.FEED_FORWARD.value: ours, ScalingPolicy.LOAD.value: theirs}

    bar = _paired_bar(scores, ScalingPolicy.LOAD.value, "machine_s", "machine-seconds")

    assert bar.figure == pytest.approx(-1.05)
    assert bar.verdict == "met"
    assert _paired_bar(scores, ScalingPolicy.LOAD.value, "above_s", "").met is False
