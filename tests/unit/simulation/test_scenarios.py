"""Scenarios by name, from files, and with what a user sets."""

from pathlib import Path

import pytest

from tidegate.core.errors import InvalidValue
from tidegate.core.topology import ScalingPolicy
from tidegate.simulation.traces import (
    load_scenario,
    scenario_names,
    with_policy,
    with_scaling_settings,
)


def test_every_name_that_is_listed_can_be_loaded() -> None:
    for name, about in scenario_names().items():
        scenario = load_scenario(name, 1)
        assert scenario.name == name
        assert scenario.about == about
        assert scenario.trace.duration_s >= 60


def test_a_wrong_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(InvalidValue, match="no scenario is called 'flash'") as refused:
        load_scenario("flash", 1)
    assert all(name in str(refused.value) for name in scenario_names())


def test_a_file_is_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "monday.csv"
    file.write_text("t_s,rate\n0,10\n60,20\n")
    assert load_scenario(str(file), 1).trace.messages == 1800
    with pytest.raises(InvalidValue, match=r"tuesday\.csv: cannot be read"):
        load_scenario(str(tmp_path / "tuesday.csv"), 1)


def test_user_settings_reach_the_loop_and_the_plant() -> None:
    scenario = with_scaling_settings(
        load_scenario("steps", 1),
        {"max_load": "80", "max": "5", "boot": "40s", "plant.start": "500ms", "warm": "none"},
    )
    assert scenario.scaling.max_load == 80.0
    assert scenario.scaling.replicas.max == 5
    assert scenario.scaling.boot_s == scenario.plant.boot_s == 40.0
    assert scenario.plant.start_s == 0.5
    assert scenario.scaling.warm is None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("max_lod", "1", "did you mean max_load?"),
        ("max_load", "many", "max_load = 'many'"),
        ("min", "9", "0 ≤ min ≤ max"),
        ("max", "x", "max = 'x'"),
        ("polling_interval", "0s", "polling_interval 0"),
        ("boot", "soon", "must be a duration"),
        ("plant.boot_failure", "1.5", "plant.boot_failure"),
        ("plant.capacity_per_s", "0", "plant.capacity_per_s"),
        ("plant.capacity_per_s", "nan", "plant.capacity_per_s"),
        ("plant.bot", "3s", "did you mean boot?"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(key: str, value: str, says: str) -> None:
    small = with_scaling_settings(load_scenario("steps", 1), {"max": "4"})
    with pytest.raises(InvalidValue) as refused:
        with_scaling_settings(small, {key: value})
    assert says in str(refused.value)


def test_the_keda_like_policy_looks_and_cools_down_as_keda_does() -> None:
    scenario = with_policy(load_scenario("steps", 1), ScalingPolicy.LENGTH)
    assert scenario.scaling.polling_interval_s == 30.0
    assert scenario.scaling.cooldown_period_s == 300.0
    assert scenario.plant.competing
