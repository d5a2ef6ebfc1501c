"""The knee of throughput against clients, the best mix, and the machines to keep warm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from tidegate.laws.capacity import Capacity, LoadPoint, capacity
from tidegate.laws.estimation import boot_time_s, sla_delta
from tidegate.laws.placement import warm_machines
from tidegate.laws.scaling import throughput_at


def measured(
    throughput: Callable[[int], float], counts: Iterable[int], noise: float, seed: int = 1
) -> Capacity:
    """One producer for two consumers, as far as it goes, and production just as fast."""
    random = np.random.default_rng(seed)
    operations = []
    for clients in counts:
        producers = max(clients // 3, 1)
        rate = throughput(clients) * (1.0 + noise * random.normal())
        operations.append(LoadPoint(producers, clients - producers, rate * 1.01, rate, 60.0))
    return capacity(operations)


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 1000), st.integers(6, 20))
def test_the_knee_of_a_curve_that_goes_flat_is_found(seed: int, knee: int) -> None:
    found = measured(lambda n: 100.0 * min(n, knee), range(2, 31), noise=0.02, seed=seed)

    assert found.accepted, found.reason
    assert abs(found.clients - knee) <= 2
    assert found.throughput_per_s == pytest.approx(100.0 * knee, rel=0.05)


def test_a_curve_that_falls_again_peaks_before_it_does() -> None:
    def law(n: int) -> float:
        return float(throughput_at(float(n), 100.0, 0.05, 0.002))

    found = measured(law, range(2, 41), noise=0.0)

    # The law itself peaks at √(0.95/0.002) = 21.8 clients, and has 95 % of that from 14 on. Its
    # plateau, a little lower than the peak, is reached a little earlier.
    assert found.accepted
    assert 12 <= found.clients <= 14
    assert found.curve is not None
    assert found.curve.r2 > 0.999
    assert found.curve.contention == pytest.approx(0.05, rel=0.01)
    assert found.curve.coherency == pytest.approx(0.002, rel=0.01)
    assert found.curve.clients_at_peak == pytest.approx(math.sqrt(0.95 / 0.002), rel=0.01)
    assert found.curve.throughput_per_s(np.array([1.0])) == pytest.approx([100.0], rel=0.02)


def test_capacity_is_refused_while_throughput_grows() -> None:
    found = measured(lambda n: 100.0 * n, range(2, 31), noise=0.01)

    assert not found.accepted
    assert not found.flattens
    assert "at least" in found.reason
    assert "30 clients" in found.reason


def test_too_little_data_is_a_reason_and_not_a_number() -> None:
    for operations, words in (
        ([], "no number of clients was"),
        ([LoadPoint(1, 2, 100.0, 100.0, 60.0)] * 9, "only one number of clients was"),
        (
            [LoadPoint(1, n, 100.0, 100.0, 60.0) for n in (2, 3)],
            "only 2 different numbers of clients were",
        ),
    ):
        found = capacity(operations)
        assert not found.accepted
        assert found.clients == 0
        assert found.reason.startswith(f"{words} at work for")
        assert "a curve needs 4 different ones" in found.reason
    assert not capacity([LoadPoint(1, n, 0.0, 0.0, 60.0) for n in range(1, 20)]).accepted
    # Seen for a moment, without consumers, or not a number: not seen.
    found = capacity(
        [
            LoadPoint(1, 1, 100.0, 100.0, 1.0),
            LoadPoint(5, 0, 100.0, 0.0, 60.0),
            LoadPoint(1, 2, math.nan, 100.0, 60.0),
        ]
    )
    assert found.operations == 0


def test_the_best_mix_of_the_paper_is_one_producer_for_two_consumers() -> None:
    # Figures 5 and 6: with one consumer twice as much goes in as comes out; two keep up; three
    # are no faster.
    found = capacity(
        [
            LoadPoint(1, 1, 1000.0, 500.0, 60.0),
            LoadPoint(1, 2, 950.0, 950.0, 60.0),
            LoadPoint(1, 3, 950.0, 948.0, 60.0),
            LoadPoint(1, 4, 940.0, 940.0, 60.0),
        ]
    )

    assert found.accepted, found.reason
    assert (found.best_producers, found.best_consumers) == (1, 2)
    assert found.clients == 3


def test_without_a_stable_mix_nothing_is_recommended() -> None:
    found = capacity([LoadPoint(1, n, 1000.0, 500.0, 60.0) for n in range(1, 9)])

    assert not found.accepted
    assert "stable" in found.reason


def test_the_papers_numbers_need_two_warm_machines() -> None:
    assert warm_machines(4.0, 96.9, 200.0) == 2
    assert warm_machines(0.5, 96.9, 200.0) == 1
    # Just one machine's worth, but for rounding.
    assert warm_machines(1.1, 100.0, 110.0) == 1
    assert warm_machines(0.0, 96.9, 200.0) == 0
    assert warm_machines(-3.0, 96.9, 200.0) == 0
    with pytest.raises(ValueError, match="capacity"):
        warm_machines(4.0, 96.9, 0.0)
    with pytest.raises(ValueError, match="known numbers"):
        warm_machines(math.nan, 96.9, 200.0)


def test_a_few_boots_give_a_mean_and_many_a_percentile() -> None:
    few = boot_time_s([90.0, 100.0, math.nan])
    assert few == (95.0, "mean", 2)
    many = boot_time_s([float(n) for n in range(1, 101)])
    assert many.kind == "p95"
    assert many.boot_s == pytest.approx(95.05)
    with pytest.raises(ValueError, match="no boot"):
        boot_time_s([])


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_ramps_and_staircases_are_growth_and_noise_is_not(noise: float) -> None:
    seconds = np.arange(3600.0)
    hiss = noise * np.random.default_rng(1).normal(size=3600)

    # The paper's fast ramp, 100 msg/s each 25 s, and its slow one, both up to 750 msg/s.
    assert sla_delta(np.minimum(100.0 * (seconds // 25), 750.0) + hiss, 1.0) == pytest.approx(
        4.0, rel=0.1
    )
    slow = sla_delta(np.minimum(0.5 * seconds, 750.0) + hiss, 1.0)
    assert slow == pytest.approx(0.5, rel=0.3)
    assert sla_delta(200.0 + hiss, 1.0) == 0.0
    assert sla_delta(1000.0 - 0.2 * seconds + hiss, 1.0) < 0.1


def test_a_single_spike_and_a_gap_are_no_growth() -> None:
    rates = np.full(600, 100.0)
    rates[300] = 5000.0
    assert sla_delta(rates, 1.0) == 0.0
    # What was not recorded is no growth from nothing.
    gap = np.full(600, 100.0)
    gap[200:260] = np.nan
    gap[260:] = 900.0
    assert sla_delta(gap, 1.0) == 0.0
    assert math.isnan(sla_delta(np.full(10, 1.0), 1.0))
    assert math.isnan(sla_delta(np.full(600, np.nan), 1.0))
