"""The nearest profile's gains, without flicker, and cautious ones far from all."""

from __future__ import annotations

import pytest

from tidegate.laws.prefetch.controller import GainSchedule, WorkloadProfile
from tidegate.laws.prefetch.design import ControllerType, Gains
from tidegate.laws.prefetch.fit import LinearModel


def profile(name: str, message_bytes: float, b: float) -> WorkloadProfile:
    model = LinearModel(0.2, b, 0.0)
    return WorkloadProfile(
        name, {"message_bytes": message_bytes}, model, Gains(ControllerType.PI, 0.0, 0.1 / b)
    )


SMALL, LARGE = profile("small", 256.0, 60.0), profile("large", 16_384.0, 20.0)


@pytest.mark.parametrize(("size", "name"), [(200.0, "small"), (600.0, "small"), (9e3, "large")])
def test_the_nearest_by_factors(size: float, name: str) -> None:
    assert GainSchedule([SMALL, LARGE]).choose({"message_bytes": size}).name == name


def test_between_two_it_does_not_flicker() -> None:
    schedule = GainSchedule([profile("one", 100.0, 60.0), profile("four", 400.0, 20.0)])

    # 200 is in the middle.
    chosen = [schedule.choose({"message_bytes": size}).name for size in (150, 190, 210, 190, 210)]

    assert chosen == ["one"] * 5
    assert schedule.choose({"message_bytes": 300.0}).name == "four"
    assert schedule.choose({"message_bytes": 190.0}).name == "four"


def test_far_from_all_the_most_cautious_is_taken() -> None:
    schedule = GainSchedule([LARGE, SMALL])

    # A thousand times as large as the largest: it answers least, but who knows.
    assert schedule.choose({"message_bytes": 16e6}).name == "small"
    assert schedule.choose({}).name == "small"


def test_unknown_features_are_not_compared() -> None:
    schedule = GainSchedule([SMALL, LARGE])

    assert schedule.choose({"message_bytes": 9e3, "publishers": 25.0}).name == "large"


def test_a_schedule_without_a_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="identify a model first"):
        GainSchedule([])
