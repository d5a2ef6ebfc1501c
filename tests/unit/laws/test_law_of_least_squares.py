"""a and b from sums: numpy's least squares, without the samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plant import Samples, plant, prefetches

from tidegate.laws.prefetch.fit import (
    FIELDS,
    NoExcitation,
    RegressionSums,
    fit_coefficients,
    fit_model,
    linear_model,
    r_squared,
    squared_error,
)


def by_numpy(samples: Samples) -> tuple[float, float, float]:
    columns = np.column_stack([samples.y, samples.u, np.ones(len(samples.u))])
    a, b, offset = np.linalg.lstsq(columns, samples.y_next, rcond=None)[0]
    return float(a), float(b), float(offset)


def test_three_samples_by_hand() -> None:
    # y: 0 10 25, u: 1 2 3, next: 10 25 42.5 is exactly 0.5·y + 10·u.
    samples = Samples(
        np.array([0.0, 10.0, 25.0]), np.array([1.0, 2.0, 3.0]), np.array([10, 25, 42.5])
    )

    sums = samples.sums()

    assert (sums.n, sums.y, sums.u, sums.y_next) == (3.0, 35.0, 6.0, 77.5)
    assert (sums.s1, sums.s2, sums.s3, sums.s4, sums.s5) == (725.0, 95.0, 14.0, 1312.5, 187.5)
    # The paper's formula on the raw sums: there is no offset here, so it is exact.
    assert fit_coefficients(sums) == pytest.approx((0.5, 10.0))
    assert fit_model(sums).offset_per_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("base", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("noise", [1.0, 60.0])
def test_sums_give_what_numpy_gives_also_around_a_million(base: float, noise: float) -> None:
    samples = plant(prefetches(1, 20, 5000), noise=noise, base=base)

    found = fit_model(samples.sums())

    a, b, offset = by_numpy(samples)
    assert found.a == pytest.approx(a, rel=1e-6)
    assert found.b == pytest.approx(b, rel=1e-6)
    assert found.offset_per_s == pytest.approx(offset, rel=1e-6, abs=1e-3)


def test_error_and_r2_on_other_samples_need_only_their_sums() -> None:
    fit, other = plant(prefetches(1, 20, 4000), base=5e4).held_out()

    found = fit_model(fit.sums())

    residual = other.y_next - found.a * other.y - found.b * other.u - found.offset_per_s
    assert squared_error(found, other.sums()) == pytest.approx(float(residual @ residual), rel=1e-6)
    explained = 1.0 - float(residual @ residual) / float(
        np.sum((other.y_next - other.y_next.mean()) ** 2)
    )
    assert r_squared(found, other.sums()) == pytest.approx(explained, rel=1e-9)


@given(st.integers(1, 199))
def test_sums_of_parts_add_up_to_the_sums_of_all(cut: int) -> None:
    samples = plant(prefetches(1, 20, 200))
    left = Samples(samples.y[:cut], samples.u[:cut], samples.y_next[:cut]).sums()
    right = Samples(samples.y[cut:], samples.u[cut:], samples.y_next[cut:]).sums()

    together = left + right

    for name in FIELDS:
        assert getattr(together, name) == pytest.approx(getattr(samples.sums(), name))


@given(st.floats(-0.95, 0.95), st.floats(0.5, 500.0), st.floats(-1e4, 1e4))
def test_without_noise_any_model_is_found_again(a: float, b: float, offset: float) -> None:
    u = prefetches(1, 30, 60)
    y = np.random.default_rng(3).uniform(0.0, 5e3, 60)
    assume(abs(b) > 1e-3)

    found = fit_model(Samples(y, u, a * y + b * u + offset).sums())

    assert found.a == pytest.approx(a, abs=1e-6)
    assert found.b == pytest.approx(b, rel=1e-6, abs=1e-4)
    assert found.offset_per_s == pytest.approx(offset, rel=1e-6, abs=1e-2)


def test_many_consumers_are_solved_at_once_as_arrays() -> None:
    many = [plant(prefetches(1, 20, 300, seed), seed=seed, a=seed / 20) for seed in range(1, 10)]
    stacked = RegressionSums(
        *(np.array([getattr(one.sums(), name) for one in many]) for name in FIELDS)
    )

    found = linear_model(stacked)

    for place, one in enumerate(many):
        assert found.a[place] == pytest.approx(fit_model(one.sums()).a)
        assert found.b[place] == pytest.approx(fit_model(one.sums()).b)


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (plant(np.full(100, 5.0)), "prefetch never changed"),
        (Samples(np.full(9, 7.0), np.arange(9.0), np.full(9, 7.0)), "rate never changed"),
        (Samples(np.arange(9.0), 3 * np.arange(9.0), np.arange(9.0)), "moved together"),
        (Samples(np.zeros(2), np.arange(2.0), np.ones(2)), "2 samples"),
        (Samples(np.array([1.0, np.nan, 3.0]), np.arange(3.0), np.ones(3)), "not a number"),
        # What varies is far below what sums of squares around a million can hold.
        (Samples(1e6 + np.arange(9.0) * 1e-4, np.arange(9.0) ** 2, np.ones(9)), "rate never"),
    ],
)
def test_without_excitation_there_is_no_model(samples: Samples, reason: str) -> None:
    with pytest.raises(NoExcitation, match=reason):
        fit_model(samples.sums())


def test_small_changes_around_a_million_are_still_seen() -> None:
    # ±20 around 1 000 000 messages per second: squares of 1e12 for changes of 400.
    samples = plant(prefetches(1, 20, 5000), b=2.0, noise=5.0, base=1e6)

    found = fit_model(samples.sums())

    a, b, _ = by_numpy(samples)
    assert found.a == pytest.approx(a, rel=1e-3)
    assert found.b == pytest.approx(b, rel=1e-3)
