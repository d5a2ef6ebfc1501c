"""Durations in buckets: percentiles within some 10 percent, whatever came."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.telemetry.meters import (
    BUCKETS,
    Histogram,
    Rate,
    bucket_of,
    merge_histograms,
    upper_bound_s,
)
from tidegate.telemetry.stats import make_durations

seconds = st.floats(1e-6, 1800.0)


@given(seconds)
def test_a_bucket_holds_its_durations_within_an_eighth_of_a_doubling(duration_s: float) -> None:
    upper = upper_bound_s(bucket_of(duration_s))
    assert duration_s <= upper * (1 + 1e-9)
    assert upper <= duration_s * 2 ** (1 / 8) * (1 + 1e-9)


@given(st.floats(allow_nan=False, min_value=0.0))
def test_every_duration_has_a_bucket(duration_s: float) -> None:
    if math.isfinite(duration_s):
        assert 0 <= bucket_of(duration_s) < BUCKETS


@given(st.lists(seconds, min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_near_the_true_one(sample: list[float], fraction: float) -> None:
    histogram = Histogram()
    for duration_s in sample:
        histogram.add(duration_s)
    rank = max(math.ceil(fraction * len(sample)) - 1, 0)
    truth = sorted(sample)[rank]
    assert truth * (1 - 1e-9) <= histogram.percentile_s(fraction) <= truth * 2 ** (1 / 8) * 1.001
    assert histogram.percentile_s(1.0) == pytest.approx(max(sample))


@given(st.lists(st.lists(seconds, max_size=20), max_size=5))
def test_merging_is_the_same_as_adding_all_to_one(samples: list[list[float]]) -> None:
    parts, whole = [], Histogram()
    for sample in samples:
        part = Histogram()
        for duration_s in sample:
            part.add(duration_s)
            whole.add(duration_s)
        parts.append(part)
    total = merge_histograms(parts)
    assert total.counts == whole.counts
    assert (total.count, total.max_s) == (whole.count, whole.max_s)
    assert total.sum_s == pytest.approx(whole.sum_s)


def test_many_equal_durations_are_added_at_once() -> None:
    one, many = Histogram(), Histogram()
    for _ in range(1000):
        one.add(0.01)
    many.add(0.01, 1000)
    assert many.counts == one.counts
    assert many.sparse() == [(upper_bound_s(bucket_of(0.01)), 1000)]


def test_an_empty_histogram_has_numbers_too() -> None:
    assert Histogram().percentile_s(0.99) == 0.0
    assert make_durations(Histogram()).count == 0
    filled = Histogram()
    filled.add(0.002, 3)
    numbers = make_durations(filled)
    assert (numbers.count, numbers.max_ms) == (3, 2.0)
    assert numbers.mean_ms == pytest.approx(2.0)
    assert sum(count for _, count in numbers.buckets) == 3


def test_a_rate_is_what_came_between_two_ticks() -> None:
    rate = Rate()
    rate.add(5)
    rate.tick(10.0)
    assert rate.per_s == 0.0, "nobody knows since when"
    rate.add(20)
    rate.tick(12.0)
    assert (rate.per_s, rate.total) == (10.0, 25)
    rate.tick(13.0)
    assert rate.per_s == 0.0
