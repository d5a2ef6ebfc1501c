"""Known plants are found again, and what is no plant is refused with a reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plant import PAPER_A, PAPER_B, PAPER_KNEE, Array, Samples, plant, prefetches

from tidegate.laws.estimation import IdentifiedModel, Level, Shape, identify, linear_range
from tidegate.laws.prefetch.fit import RegressionSums, fit_model


def identified(samples: Samples) -> IdentifiedModel:
    fit, other = samples.held_out()
    return identify(fit.by_prefetch(), other.by_prefetch())


@pytest.mark.parametrize("noise", [5.0, 20.0, 60.0])
def test_a_known_model_is_found_within_two_percent(noise: float) -> None:
    found = identified(plant(prefetches(1, 20, 20_000), noise=noise))

    assert found.accepted, found.reason
    assert found.linear_range.shape is Shape.LINEAR
    assert found.a == pytest.approx(PAPER_A, rel=0.02)
    assert found.b == pytest.approx(PAPER_B, rel=0.02)
    assert found.rmse_test_per_s == pytest.approx(noise, rel=0.1)


@pytest.mark.parametrize("noise", [5.0, 20.0])
def test_the_plant_of_the_paper_is_found_below_its_knee_of_22(noise: float) -> None:
    samples = plant(prefetches(1, 60, 40_000), noise=noise, knee=PAPER_KNEE)

    found = identified(samples)

    assert found.accepted, found.reason
    assert found.linear_range.shape is Shape.KNEE
    assert 20.0 <= found.linear_range.high <= 24.0
    assert found.a == pytest.approx(PAPER_A, rel=0.02)
    assert found.b == pytest.approx(PAPER_B, rel=0.02)
    # A fit across the knee is what this saves us from.
    assert fit_model(samples.sums()).b < 0.5 * PAPER_B


def test_a_staircase_over_all_prefetches_shows_the_knee() -> None:
    # Figure 3: 1 to 360, each held for some samples.
    found = identified(plant(np.repeat(np.arange(1.0, 361.0), 10), knee=PAPER_KNEE))

    assert found.linear_range.shape is Shape.KNEE
    assert 20.0 <= found.linear_range.high <= 24.0


def test_only_a_few_prefetches_were_tried_and_the_knee_lies_between_two_of_them() -> None:
    tried = np.array([1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 40.0, 80.0, 160.0])
    u = np.random.default_rng(2).choice(tried, 6000)

    found = identified(plant(u, knee=PAPER_KNEE))

    assert found.accepted, found.reason
    assert found.linear_range.high == 20.0
    assert found.b == pytest.approx(PAPER_B, rel=0.02)


def refusal(u: Array, **plant_of: float) -> str:
    found = identified(plant(u, **plant_of))  # type: ignore[arg-type]
    assert not found.accepted
    return found.reason


def test_refused_model_has_a_reason() -> None:
    assert "does not grow" in refusal(prefetches(30, 60, 4000), knee=PAPER_KNEE)
    assert "explains" in refusal(prefetches(1, 20, 4000), noise=900.0)
    assert "never changed" in refusal(np.full(4000, 7.0))
    assert "too few" in refusal(prefetches(1, 4, 40))


def test_a_rate_that_is_not_driven_by_prefetch_is_no_model() -> None:
    # A slow drift explains itself (R² near 1) and says nothing about prefetch.
    random = np.random.default_rng(4)
    drift = 1000.0 + np.cumsum(random.normal(size=4001))
    found = identified(Samples(drift[:-1], prefetches(1, 20, 4000), drift[1:]))

    assert not found.accepted
    assert "does not grow" in found.reason or "prefetch does not drive" in found.reason


def test_a_rate_that_runs_away_is_no_model() -> None:
    u = prefetches(1, 20, 400)
    y = np.random.default_rng(4).uniform(0.0, 100.0, 400)
    found = identified(Samples(y, u, 1.2 * y + 50.0 * u))

    assert not found.accepted
    assert "runs away" in found.reason


def test_identification_without_samples_is_refused() -> None:
    found = identify({}, {})

    assert not found.accepted
    assert "0 samples" in found.reason
    assert math.isnan(found.a)


def test_sums_that_are_not_numbers_are_a_reason_and_not_an_error() -> None:
    bad = RegressionSums(*(math.nan for _ in range(10)))
    good = plant(prefetches(1, 20, 4000)).by_prefetch()

    found = identify(good | {99.0: bad}, good)

    assert found.accepted, found.reason
    assert "0 samples" in identify({1.0: bad, 2.0: bad, 3.0: bad}, good).reason


def levels(slope: float, knee: float, noise: float, seed: int, count: int = 40) -> list[Level]:
    random = np.random.default_rng(seed)
    return [
        Level(u, 25.0, 100.0 + slope * min(u, knee) + noise / 5.0 * random.normal(), noise**2)
        for u in np.arange(1.0, count + 1.0)
    ]


@settings(deadline=None)
@given(st.integers(8, 30), st.floats(5.0, 100.0), st.integers(0, 1000))
def test_a_knee_is_found_where_it_is(knee: int, slope: float, seed: int) -> None:
    found = linear_range(levels(slope, knee, noise=slope, seed=seed))

    assert found.shape is Shape.KNEE
    assert abs(found.high - knee) <= 2.0


@settings(deadline=None)
@given(st.floats(5.0, 100.0), st.integers(0, 1000))
def test_a_line_has_no_knee(slope: float, seed: int) -> None:
    found = linear_range(levels(slope, np.inf, noise=slope, seed=seed))

    assert found.shape is Shape.LINEAR
    assert (found.low, found.high) == (1.0, 40.0)
    assert found.contains(40.0)


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_a_plateau_is_saturated(seed: int) -> None:
    found = linear_range(levels(0.0, np.inf, noise=10.0, seed=seed))

    assert found.shape is Shape.SATURATED
    assert not found.contains(5.0)


def test_without_any_noise_at_all_the_shapes_are_told_apart() -> None:
    assert linear_range(levels(10.0, 20.0, 0.0, 0)).high == 20.0
    assert linear_range(levels(10.0, np.inf, 0.0, 0)).shape is Shape.LINEAR
    assert linear_range(levels(0.0, np.inf, 0.0, 0)).shape is Shape.SATURATED
    assert linear_range(levels(10.0, np.inf, 0.0, 0)[:2]).shape is Shape.UNKNOWN
