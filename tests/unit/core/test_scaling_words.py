"""A scaling as people write it: understood, or refused with what is allowed."""

from __future__ import annotations

import math

import msgspec
import pytest

from tidegate.core.errors import InvalidValue
from tidegate.core.topology import (
    DEFAULT_SCALING,
    ControlMode,
    Range,
    Scaling,
    ScalingPolicy,
    format_scaling_keys,
    scaling_problems,
    with_scaling_keys,
)


def test_texts_of_a_command_line_and_values_of_a_file_mean_the_same() -> None:
    by_text = {"min": "2", "max": "8", "policy": "feed-forward", "max_wait": "2s", "warm": "1"}
    by_value = {"replicas": {"min": 2, "max": 8}, "policy": "feed-forward", "max_wait": "2s"}
    expected = Scaling(
        replicas=Range(2, 8), policy=ScalingPolicy.FEED_FORWARD, max_wait_s=2.0, warm=1
    )
    assert with_scaling_keys(DEFAULT_SCALING, by_text) == expected
    assert with_scaling_keys(DEFAULT_SCALING, by_value | {"warm": 1}) == expected


def test_scaling_keys_keep_unnamed_values_and_none_resets() -> None:
    before = with_scaling_keys(DEFAULT_SCALING, {"max": 4, "warm": 2, "cooldown-period": "30s"})
    after = with_scaling_keys(before, {"warm": "none"})
    assert (after.replicas.max, after.cooldown_period_s, after.warm) == (4, 30.0, None)


def test_a_scaling_is_written_as_it_was_read() -> None:
    scaling = with_scaling_keys(
        DEFAULT_SCALING,
        {"min": 1, "max": 5, "max_wait": "250ms", "steering": "manual", "replicas_wanted": 3},
    )
    assert with_scaling_keys(DEFAULT_SCALING, format_scaling_keys(scaling)) == scaling
    assert scaling.steering is ControlMode.MANUAL


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"min": 5, "max": 2}, "0 ≤ min ≤ max"),
        ({"max": 0, "min": 0}, "between 1 and"),
        ({"min_load": 300}, "min_load < max_load"),
        ({"steering": "manual"}, "replicas_wanted"),
        ({"max_wait": "2"}, "a duration"),
        ({"max_wait": "0s"}, "max_wait 0: must be above 0"),
        ({"policy": "best"}, "policy = 'best': must be one of fixed, load, clients, feed-forward"),
        ({"warm": "many"}, "warm = 'many': must be a whole number or none"),
        ({"max_load": "high"}, "max_load = 'high': must be a number"),
        ({"replicas": 3}, "replicas = 3: must be { min = 1, max = 8 }"),
        ({"capacity_per_s": math.inf}, "capacity_per_s inf: must be above 0 and at most 1e+12"),
        (
            {"steering": "manual", "replicas_wanted": 0},
            "between min 1 and max 1; steering is manual: say how many (--to), or let the policy "
            "decide (--auto)",
        ),
        ({"worker": "shop"}, "module:app"),
        ({"polling_interval": "1ms"}, "polling_interval 0.001: must be at least 0.1"),
        ({"slots_per_machine": 0}, "slots_per_machine 0"),
        ({"max_lod": 3}, "did you mean max_load?"),
        ({"replicas": {"min": 1, "most": 3}}, "replicas"),
        ({"warm": "-1"}, "warm -1"),
        ({"max_load": float("nan")}, "max_load"),
    ],
)
def test_invalid_scaling_key_is_refused_with_allowed_values(
    changes: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        with_scaling_keys(DEFAULT_SCALING, changes)
    assert says in str(refused.value)


def test_the_default_makes_sense() -> None:
    assert scaling_problems(DEFAULT_SCALING) == []


@pytest.mark.parametrize(
    "field",
    [
        one.name
        for one in msgspec.structs.fields(Scaling)
        if "float" in str(one.type) and one.name != "shares"
    ],
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_may_be_one_that_the_catalogue_cannot_keep(field: str, value: float) -> None:
    assert scaling_problems(msgspec.structs.replace(DEFAULT_SCALING, **{field: value}))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.1])
def test_shares_by_hand_are_parts_of_replicas(value: float) -> None:
    assert scaling_problems(msgspec.structs.replace(DEFAULT_SCALING, shares={1: value, 2: 1.0}))
    assert scaling_problems(msgspec.structs.replace(DEFAULT_SCALING, shares={1: 0.0}))
    assert scaling_problems(msgspec.structs.replace(DEFAULT_SCALING, shares={0: 1.0}))
    said = with_scaling_keys(DEFAULT_SCALING, {"shares": {"1": 0.25, "2": 0.75}})
    assert said.shares == {1: 0.25, 2: 0.75}
    assert format_scaling_keys(said)["shares"] == "1: 0.25, 2: 0.75"
    assert with_scaling_keys(said, {"shares": None}).shares is None
