"""The forecast is better than the baseline where there is something to know, and says where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegate.laws.estimation import mean_interval, mean_interval_of
from tidegate.laws.forecasting import (
    error_bands,
    forecast,
    forecast_origins,
    length_min,
    seasonal_naive,
    seasonal_profile,
)

DAY, HOUR = 288, 12  # steps of five minutes


def days(count: int, series: int = 40, noise: float = 8.0) -> NDArray[np.float64]:
    """A day that repeats, a slow drift on top, and noise."""
    random = np.random.default_rng(1)
    time = np.arange(count * DAY)
    shape = 200.0 + 100.0 * np.sin(2.0 * np.pi * time / DAY + random.uniform(0, 6, (series, 1)))
    drift = np.cumsum(random.normal(size=shape.shape), axis=1)
    return np.maximum(shape + drift + noise * random.normal(size=shape.shape), 0.0)


def test_a_day_that_repeats_is_forecast_better_than_by_yesterday() -> None:
    history = days(8)

    found = forecast(history[:, :-HOUR], HOUR, seasons=(DAY, 7 * DAY))

    assert found.accepted.mean() > 0.9
    assert np.median(found.skill) > 0.2
    assert (found.season > 0).mean() > 0.9
    # Against what really came, which it has not seen.
    real = history[:, -HOUR:]
    ours = np.abs(found.expected_per_s - real).mean()
    assert ours < np.abs(found.baseline_per_s - real).mean()
    within = (real >= found.low_per_s) & (real <= found.high_per_s)
    assert 0.8 < within.mean() < 0.98
    assert np.mean(found.coverage) == pytest.approx(0.9, abs=0.07)


def test_forecast_of_constant_and_random_walk_is_refused() -> None:
    constant = np.full((1, 600), 5.0)
    wander = 1000.0 + np.cumsum(np.random.default_rng(2).normal(size=(50, 600)), axis=1)

    # Nothing beats the last value of a constant, nor (by much) of a random walk.
    assert "no error at all" in forecast(constant, HOUR).reason[0]
    found = forecast(wander, HOUR)
    assert found.accepted.mean() < 0.4
    assert any("use the baseline" in reason for reason in found.reason)


@pytest.mark.parametrize("steps", [1, 2, 7, HOUR, 60])
def test_how_much_history_it_takes_is_said_in_hours_and_is_just_enough(steps: int) -> None:
    enough = length_min(steps, steps)
    short = forecast(np.ones((1, enough - 1)), steps, step_s=300.0)
    assert "too little" in short.reason[0]
    assert "too little" not in forecast(np.ones((1, enough)), steps).reason[0]
    assert (
        "5m of history is too little to choose and judge a forecast by, which takes 7.5h"
        in (forecast(np.ones((1, 5)), 60, step_s=60.0).reason[0])
    )


def test_a_short_history_repeats_the_last_value_and_promises_nothing() -> None:
    found = forecast(np.array([[1.0, 2.0, np.nan], [np.nan, np.nan, np.nan]]), HOUR)

    assert not found.accepted.any()
    assert found.reason[0].startswith("3m of history is too little")
    assert found.expected_per_s[0].tolist() == [2.0] * HOUR
    assert np.isnan(found.expected_per_s[1]).all()
    assert np.isnan(found.low_per_s).all()


def test_gaps_and_spikes_do_not_spoil_it() -> None:
    history = days(8)
    clean = forecast(history, HOUR, seasons=(DAY,))
    broken = history.copy()
    broken[:, 100:160] = np.nan
    broken[:, 3 * DAY + 7 :: DAY] = 1e5
    broken[3] = np.nan

    found = forecast(broken, HOUR, seasons=(DAY,))

    whole = np.arange(len(history)) != 3
    assert np.isfinite(found.expected_per_s[whole]).all()
    assert "not recorded" in found.reason[3]
    apart = np.abs(found.expected_per_s[whole] - clean.expected_per_s[whole]).mean()
    assert apart < 20.0


def test_no_series_is_an_empty_forecast() -> None:
    assert forecast(np.empty((0, 100)), HOUR).expected_per_s.shape == (0, HOUR)


def test_series_do_not_know_each_other() -> None:
    history = days(4, series=300)

    together = forecast(history, HOUR, seasons=(DAY,))

    for row in (0, 255, 256, 299):
        alone = forecast(history[row : row + 1], HOUR, seasons=(DAY,))
        assert alone.expected_per_s[0] == pytest.approx(together.expected_per_s[row])
        assert alone.high_per_s[0] == pytest.approx(together.high_per_s[row])


def test_the_baseline_repeats_the_season_or_the_last_value() -> None:
    history = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])

    assert seasonal_naive(history, 2, 4).tolist() == [[3.0, 4.0]]
    assert seasonal_naive(history, 2, 0).tolist() == [[6.0, 6.0]]
    assert seasonal_naive(history, 2, 100).tolist() == [[6.0, 6.0]]


@settings(deadline=None)
@given(st.integers(2 * DAY, 3 * DAY), st.integers(0, 99))
def test_a_profile_never_sees_what_it_forecasts(at: int, seed: int) -> None:
    history = days(3, series=2)
    other = history.copy()
    other[:, at:] = np.random.default_rng(seed).uniform(0.0, 1e6, other[:, at:].shape)

    one, two = seasonal_profile(history, DAY, HOUR), seasonal_profile(other, DAY, HOUR)

    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(one.usual[:, : at + HOUR], two.usual[:, : at + HOUR])


@given(st.integers(0, 300), st.integers(1, 3000), st.integers(1, 120))
def test_windows_that_choose_end_before_those_that_judge_begin(
    first: int, length: int, steps: int
) -> None:
    found = forecast_origins(first, length, steps)

    if found is not None:
        assert max(found.choose) + steps <= min(found.judge)
        assert max(found.judge) + steps <= length
        assert min(found.choose) >= first


def test_bands_hold_what_they_promise() -> None:
    residuals = np.random.default_rng(3).normal(size=(30, 50, 24))

    low, high = error_bands(residuals, 0.9)

    fresh = np.random.default_rng(4).normal(size=(200, 50, 24))
    assert ((fresh >= low) & (fresh <= high)).mean() == pytest.approx(0.92, abs=0.03)


def test_a_mean_has_the_interval_of_the_textbook() -> None:
    # n = 10, s = 2: t(0.975, 9) = 2.262 gives 2.262·2/√10 = 1.431.
    found = mean_interval(10, 5.0, 4.0)

    assert found.half_width == pytest.approx(1.4307, abs=1e-4)
    assert (found.low + found.high) / 2 == pytest.approx(5.0)
    assert mean_interval_of([1.0, 2.0, 3.0, 4.0]).low == pytest.approx(0.4457, abs=1e-4)
    assert np.isnan(mean_interval_of([7.0]).low)
    assert mean_interval_of([7.0]).mean == 7.0
    assert np.isnan(mean_interval_of([]).mean)
