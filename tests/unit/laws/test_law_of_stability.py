"""Stable, flooded, draining: with a band, in one formula for numbers, arrays and Columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.laws.scaling import (
    Stability,
    StabilityBand,
    client_load,
    cluster_load,
    growth_per_s,
    is_draining,
    is_flooded,
    overall_load,
    queue_totals,
    stability,
)

rates = st.floats(0.0, 1e6)


@pytest.mark.parametrize(
    ("produced", "consumed", "expected"),
    [
        (100.0, 100.0, Stability.STABLE),
        (100.0, 95.0, Stability.STABLE),  # 5 apart, 5 % of 100: just within
        (100.0, 94.9, Stability.FLOODED),
        (94.9, 100.0, Stability.DRAINING),
        (2000.0, 1000.0, Stability.FLOODED),  # figure 5 of the paper: twice as fast in as out
        (0.0, 0.0, Stability.STABLE),
        (0.0, 1.0, Stability.DRAINING),
    ],
)
def test_the_band_is_relative_to_the_larger_rate(
    produced: float, consumed: float, expected: Stability
) -> None:
    assert stability(produced, consumed) is expected


def test_a_trickle_is_not_judged_by_single_messages() -> None:
    band = StabilityBand(relative=0.05, absolute_per_s=0.5)

    assert stability(0.3, 0.0, band) is Stability.STABLE
    assert stability(0.6, 0.0, band) is Stability.FLOODED


@given(rates, rates, st.floats(0.0, 0.9))
def test_the_band_without_max_is_the_band_with_max(p: float, c: float, relative: float) -> None:
    flooded = is_flooded(p, c, StabilityBand(relative))
    draining = is_draining(p, c, StabilityBand(relative))

    assert flooded == (p - c > relative * max(p, c))
    assert draining == (c - p > relative * max(p, c))
    assert not (flooded and draining)


def test_arrays_are_judged_element_by_element() -> None:
    produced, consumed = np.array([100.0, 200.0, 50.0]), np.array([100.0, 100.0, 100.0])

    assert is_flooded(produced, consumed).tolist() == [False, True, False]
    assert is_draining(produced, consumed).tolist() == [False, False, True]
    assert growth_per_s(produced, consumed).tolist() == [0.0, 100.0, -50.0]


def test_a_stable_whole_may_hide_unstable_replicas() -> None:
    whole = queue_totals([(200.0, 100.0), (100.0, 200.0)])

    assert whole.overall is Stability.STABLE
    assert whole.growth_per_s == 0.0
    assert not whole.every_replica_stable


@given(st.lists(st.tuples(rates, rates), min_size=1, max_size=5))
def test_stable_replicas_make_a_stable_whole(replicas: list[tuple[float, float]]) -> None:
    whole = queue_totals(replicas, StabilityBand(0.05, absolute_per_s=1e-6))

    # Each within 5 % of its larger rate: the sums are within 5 % of the sum of the larger ones,
    # which is at most the larger sum and 5 % more.
    if whole.every_replica_stable:
        assert (
            stability(
                whole.produced_per_s, whole.consumed_per_s, StabilityBand(0.06, absolute_per_s=1e-3)
            )
            is Stability.STABLE
        )


def test_a_band_that_swallows_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 up to 1"):
        StabilityBand(relative=1.0)


def test_load_is_clients_for_capacity() -> None:
    assert client_load(5, 10, 15) == 1.0
    assert client_load(np.array([1.0, 4.0]), np.array([2.0, 8.0]), 6.0).tolist() == [0.5, 2.0]
    # The load of the whole is the mean of the loads, by capacity.
    assert cluster_load([(2, 4, 10), (1, 2, 30)]) == pytest.approx((0.6 * 10 + 0.1 * 30) / 40)
    assert overall_load(0.4, 0.9, 0.2) == 0.9
    with pytest.raises(ValueError, match="capacity"):
        cluster_load([])
