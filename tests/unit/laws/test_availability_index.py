"""The availability index: the paper's three shares, and what it leaves open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.laws.http.balancing import ServerSample, availability_index

_NUMBER = st.none() | st.floats(0.0, 1e9)


def test_the_three_factors_are_shares_and_the_index_is_their_mean() -> None:
    index = availability_index(
        {
            "quick": ServerSample(0.1, 300.0, 6e9),
            "slow": ServerSample(0.3, 100.0, 2e9),
        }
    )
    # 1/0.1 against 1/0.3, 300 against 100, 6 against 2: three quarters each.
    assert index == pytest.approx({"quick": 75.0, "slow": 25.0})


def test_before_the_first_measurement_all_are_alike() -> None:
    assert availability_index({"a": ServerSample(), "b": ServerSample()}) == {"a": 50.0, "b": 50.0}
    assert availability_index({}) == {}


def test_a_server_that_nobody_has_measured_is_taken_for_an_average_one() -> None:
    index = availability_index(
        {"a": ServerSample(0.1), "b": ServerSample(0.2), "new": ServerSample()}
    )
    assert index["b"] < index["new"] < index["a"]


def test_a_factor_that_nobody_measures_does_not_count() -> None:
    index = availability_index({"a": ServerSample(0.1), "b": ServerSample(0.4)})
    assert index == pytest.approx({"a": 80.0, "b": 20.0})


@given(st.lists(st.builds(ServerSample, _NUMBER, _NUMBER, _NUMBER), min_size=1, max_size=8))
def test_indexes_add_up_to_a_hundred_whatever_was_measured(samples: list[ServerSample]) -> None:
    index = availability_index({str(n): one for n, one in enumerate(samples)})
    assert sum(index.values()) == pytest.approx(100.0)
    assert all(one >= 0.0 for one in index.values())
