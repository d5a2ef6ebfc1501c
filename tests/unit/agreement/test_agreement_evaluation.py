"""Met, warned, breached, and what that costs of the error budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.agreements import Metric, Unit, Worse
from tidegate.agreements.evaluation import (
    FAST_BURN,
    Verdict,
    VerdictCounts,
    budget_left,
    burn_rate,
    is_breached,
    is_warned,
    metric_verdict,
    worst_verdict,
)

RESPONSE = Metric("response_p99", Worse.LARGER, Unit.SECONDS, breach=6.0, warning=4.8)
THROUGHPUT = Metric("throughput", Worse.SMALLER, Unit.PER_SECOND, breach=100.0, warning=120.0)

numbers = st.floats(0.0, 1e4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, Verdict.MET),
        (4.79, Verdict.MET),
        (4.8, Verdict.WARNED),
        (5.99, Verdict.WARNED),
        (6.0, Verdict.BREACHED),
        (math.inf, Verdict.BREACHED),
        (math.nan, Verdict.NO_DATA),
        (None, Verdict.NO_DATA),
    ],
)
def test_the_points_of_tapas(value: float | None, expected: Verdict) -> None:
    assert metric_verdict(RESPONSE, value) is expected


@pytest.mark.parametrize(
    ("throughput", "offered", "expected"),
    [
        (130.0, 130.0, Verdict.MET),
        (120.0, 200.0, Verdict.MET),
        (110.0, 200.0, Verdict.WARNED),
        (100.0, 200.0, Verdict.WARNED),
        (99.0, 200.0, Verdict.BREACHED),
        # Nobody asked for more.
        (50.0, 50.0, Verdict.MET),
        (0.0, 0.0, Verdict.MET),
        # As much as is promised was there, and was not served.
        (50.0, 100.0, Verdict.BREACHED),
        # Enough for the breach, not enough to warn of it.
        (105.0, 110.0, Verdict.MET),
    ],
)
def test_low_throughput_counts_only_if_the_load_was_there(
    throughput: float, offered: float, expected: Verdict
) -> None:
    assert metric_verdict(THROUGHPUT, throughput, offered) is expected


def test_free_memory_is_worse_when_smaller() -> None:
    memory = Metric("free_memory", Worse.SMALLER, Unit.BYTES, breach=100.0, warning=120.0)

    assert [metric_verdict(memory, free) for free in (150.0, 110.0, 90.0)] == [
        Verdict.MET,
        Verdict.WARNED,
        Verdict.BREACHED,
    ]


@given(numbers, numbers, st.sampled_from([RESPONSE, THROUGHPUT]))
def test_arrays_get_the_verdicts_of_numbers(value: float, offered: float, metric: Metric) -> None:
    load = None if metric is RESPONSE else offered
    loads = None if load is None else np.array([load])

    breached = bool(is_breached(metric, np.array([value]), loads)[0])
    warned = bool(is_warned(metric, np.array([value]), loads)[0])

    assert not (breached and warned)
    expected = Verdict.BREACHED if breached else Verdict.WARNED if warned else Verdict.MET
    assert metric_verdict(metric, value, load) is expected


@given(numbers, numbers)
def test_worse_never_gets_a_better_verdict(one: float, other: float) -> None:
    better, worse = sorted([one, other])
    assert worst_verdict(
        [metric_verdict(RESPONSE, better), metric_verdict(RESPONSE, worse)]
    ) is metric_verdict(RESPONSE, worse)
    assert worst_verdict(
        [metric_verdict(THROUGHPUT, better), metric_verdict(THROUGHPUT, worse)]
    ) is metric_verdict(THROUGHPUT, better)


def test_the_worst_metric_decides_a_window() -> None:
    assert worst_verdict([Verdict.MET, Verdict.NO_DATA]) is Verdict.MET
    assert worst_verdict([Verdict.WARNED, Verdict.BREACHED, Verdict.MET]) is Verdict.BREACHED
    assert worst_verdict([]) is Verdict.NO_DATA


def test_windows_without_data_are_counted_apart() -> None:
    counts = VerdictCounts.of([Verdict.MET, Verdict.NO_DATA, Verdict.BREACHED, Verdict.WARNED])

    assert counts == VerdictCounts(met=1, warned=1, breached=1, no_data=1)
    assert counts.judged == 3
    assert (counts + counts).no_data == 2


def test_the_budget_is_what_the_objective_leaves() -> None:
    # 0.99 of 1000 windows: ten may be breached.
    assert budget_left(0, 1000, 0.99) == 1.0
    assert budget_left(5, 1000, 0.99) == pytest.approx(0.5)
    assert budget_left(10, 1000, 0.99) == pytest.approx(0.0)
    assert budget_left(20, 1000, 0.99) == pytest.approx(-1.0)
    assert budget_left(np.array([0.0, 10.0]), 1000, 0.99) == pytest.approx([1.0, 0.0])


def test_burning_at_one_uses_the_budget_up_just_in_its_period() -> None:
    assert burn_rate(10, 1000, 0.99) == pytest.approx(1.0)
    assert burn_rate(360, 360, 0.99) == pytest.approx(100.0)
    assert burn_rate(0, 360, 0.99) == 0.0


def test_an_alarm_needs_both_the_long_and_the_short_window() -> None:
    assert FAST_BURN.rings(20.0, 20.0)
    # Over already, or only just begun.
    assert not FAST_BURN.rings(20.0, 0.0)
    assert not FAST_BURN.rings(1.0, 20.0)
    assert FAST_BURN.rings(np.array([20.0, 1.0]), np.array([20.0, 20.0])).tolist() == [True, False]
    # An hour at this rate is two percent of four weeks' budget.
    assert FAST_BURN.rate * FAST_BURN.long_s / (28 * 86400) == pytest.approx(0.02)
