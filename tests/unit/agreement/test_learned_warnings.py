"""A learned warning leaves as much time as reconfiguring takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.agreements.document import AgreementInvalid, parse_agreement
from tidegate.agreements.evaluation import (
    Verdict,
    metric_verdict,
    slope_seen,
    with_learned_warnings,
)

AGREEMENT = parse_agreement(
    'name = "a"\nqueue = "q"\nwarning = "learned"\n[metrics.wait_p99]\nbreach = "6s"\n'
    '[metrics.throughput]\nbreach = 100\n[metrics.oldest_age]\nbreach = "9s"\nwarning = "8s"\n'
    "[metrics.availability]\nbreach = 0.9",
    "a.toml",
)


def test_tapas_example_with_what_was_seen() -> None:
    # It grew by 0.4 s in a second, and reconfiguring took 2 s: 0.8 s, and a quarter more.
    learned, [lesson] = with_learned_warnings(AGREEMENT, {"wait_p99": 0.4, "oldest_age": 1.0}, 2.0)

    assert learned.metrics[0].warning == pytest.approx(5.0)
    assert "it got worse by 800ms: warned of at 5s" in lesson.because
    # What a person has said stays.
    assert learned.metrics[2].warning == 8.0


def test_learned_warning_lies_above_the_breach_of_lower_bounds() -> None:
    learned, _ = with_learned_warnings(AGREEMENT, {"throughput": 8.0, "availability": 0.01}, 4.0)

    assert learned.metrics[1].warning == pytest.approx(140.0)
    assert learned.metrics[3].warning == pytest.approx(0.95)


def test_where_no_warning_is_in_time_it_is_said() -> None:
    learned, [lesson] = with_learned_warnings(AGREEMENT, {"wait_p99": 1.0}, 6.0)

    assert learned.metrics[0].warning == AGREEMENT.metrics[0].warning
    assert "no warning is in time" in lesson.because


def test_no_margin_is_wider_than_the_breach_whichever_side_is_worse() -> None:
    """A backlog of 1 GB in a window is no reason to warn of every window ever after."""
    memory = parse_agreement(
        'name = "a"\nqueue = "q"\n[metrics.free_memory]\nbreach = "64MB"\nwarning = "learned"',
        "a.toml",
    )

    learned, [lesson] = with_learned_warnings(memory, {"free_memory": 1e8}, 97.0)

    assert learned.metrics == memory.metrics
    assert "no warning is in time" in lesson.because


def test_a_learned_fraction_has_the_room_up_to_1() -> None:
    text = (
        'name = "a"\nqueue = "q"\nreconfiguration = "10s"\n[metrics.availability]\nbreach = 0.9\n'
        'warning = "learned"\nslope = {slope}'
    )

    assert parse_agreement(text.format(slope=0.009), "a.toml")
    with pytest.raises(AgreementInvalid, match="leaves too little time"):
        parse_agreement(text.format(slope=0.02), "a.toml")


def test_the_slope_is_the_fastest_that_it_got_worse() -> None:
    wait, throughput = AGREEMENT.metrics[0], AGREEMENT.metrics[1]
    readings = [(0.0, 1.0), (10.0, 3.0), (20.0, 3.5), (30.0, 1.0), (40.0, math.nan)]

    assert slope_seen(wait, readings) == pytest.approx(0.2)
    assert slope_seen(throughput, readings) == pytest.approx(0.25)
    assert slope_seen(wait, readings[:1]) is None
    assert slope_seen(throughput, [(0.0, 1.0), (1.0, 2.0)]) == 0.0


@given(
    st.sampled_from(["wait_p99", "throughput", "availability"]),
    st.floats(0.0, 1e6),
    st.floats(1e-3, 1e5),
)
def test_a_learned_warning_always_lies_before_its_breach(
    name: str, slope_per_s: float, reconfiguration_s: float
) -> None:
    learned, _ = with_learned_warnings(AGREEMENT, {name: slope_per_s}, reconfiguration_s)

    metric = next(one for one in learned.metrics if one.name == name)
    assert metric_verdict(metric, metric.breach, math.inf) is not Verdict.MET
    assert metric_verdict(metric, metric.warning, math.inf) is not Verdict.BREACHED
