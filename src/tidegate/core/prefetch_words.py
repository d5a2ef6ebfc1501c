"""Prefetch goals as text, in settings and on a command line.

    prefetch = "400/s"                     this rate for each consumer
    prefetch = "keep-up"                   as many as its handler can process
    prefetch = 12                          an override
    prefetch = "off"                       each consumer gets the prefetch it asked for
    prefetch = { rate = "400/s", settle = "30s", overshoot = "5%", high = 100 }

Every error names the key, the given value and the allowed values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tidegate.core.complaint import allowed, meant, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.core.quantities import (
    DURATION_IS,
    RATE,
    RATE_IS,
    format_duration,
    parse_duration_s,
    parse_rate_per_s,
)

PART_IS = "a part, such as 5% or 0.05"
KEEP_UP = "keep-up"
OFF = ("off", "none")
# Settling cannot be observed in fewer samples.
SETTLING_SAMPLES_MIN = 4
# Longer times make no sense.
_DURATION_S_MAX = 86_400.0
# A node polls its consumers about twenty times a second.
_SAMPLE_S_MIN = 0.1
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


def parse_part(text: str) -> float:
    """Return the part of 1 for text such as `5%` or `0.05`."""
    match = _PART.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{text!r} is not {PART_IS}")
    return float(match[1]) / (100.0 if match[2] else 1.0)


def _rate(value: Any) -> float | None:
    return None if value == KEEP_UP else parse_rate_per_s(msgspec.convert(value, str))


def _duration(value: Any) -> float:
    return parse_duration_s(msgspec.convert(value, str))


def _part(value: Any) -> float:
    return parse_part(value) if isinstance(value, str) else msgspec.convert(value, float)


def _model(value: Any) -> PrefetchModel:
    # In settings the value is a file name; otherwise it is the model itself.
    return PrefetchModel.load(value) if isinstance(value, str) else _as(PrefetchModel)(value)


def _as(kind: Any) -> Callable[[Any], Any]:
    return lambda value: msgspec.convert(value, kind, strict=not isinstance(value, str))


# By key in the text: the field, the allowed values, and the function that reads a value.
_KEYS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "rate": ("rate_per_s", f"{RATE_IS}, or {KEEP_UP}", _rate),
    "settle": ("settle_s", DURATION_IS, _duration),
    "overshoot": ("overshoot", PART_IS, _part),
    "controller": ("controller", allowed(ControllerKind), _as(ControllerKind)),
    "sample": ("sample_s", DURATION_IS, _duration),
    "low": ("low", "a whole number", _as(int)),
    "high": ("high", "a whole number", _as(int)),
    "fallback": ("fallback", "a whole number", _as(int)),
    "held": ("held", "a number", _as(float | None)),
    "adaptive": ("adaptive", "true or false", _as(bool)),
    "manual": ("manual", "a whole number", _as(int | None)),
    "model": ("model", "a file that `tidegate tune prefetch` has written", _model),
}


def goal_of(value: Any, before: PrefetchGoal | None = None) -> PrefetchGoal | None:
    """Return the goal for a value in text form, based on an earlier goal; `None` means off."""
    goal = before or PrefetchGoal()
    if isinstance(value, Mapping):
        return changed(goal, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return by_hand(before, value)
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in OFF:
        return None
    if text.isdigit():
        return by_hand(before, int(text))
    if text == KEEP_UP or RATE.fullmatch(text):
        return changed(goal, {"rate": text})
    raise InvalidValue(
        f"prefetch = {shown(value)}: must be {RATE_IS}, {KEEP_UP}, a whole number (by hand), off, "
        "or a table with " + ", ".join(_KEYS)
    )


def by_hand(before: PrefetchGoal | None, prefetch: int) -> PrefetchGoal:
    """Return the goal with an override of the prefetch; `without_manual_prefetch` removes it."""
    goal = PrefetchGoal(only_manual=True) if before is None else before
    return changed(goal, {"manual": prefetch})


def given_back(goal: PrefetchGoal) -> PrefetchGoal | None:
    """Return the goal without its override; `None` if there was no control before it."""
    return None if goal.only_manual else changed(goal, {"manual": None})


def changed(goal: PrefetchGoal, changes: Mapping[str, Any]) -> PrefetchGoal:
    """Return the goal with some keys changed; raise `InvalidValue` for a bad key or value."""
    fields: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in _KEYS:
            raise InvalidValue(f"prefetch.{key}: there is no such key{meant(key, _KEYS)}")
        field, must, read = _KEYS[key]
        try:
            fields[field] = read(value)
        except (InvalidValue, msgspec.ValidationError) as wrong:
            if key == "model" and isinstance(wrong, InvalidValue):
                raise  # its text names the problem of the file
            raise InvalidValue(f"prefetch.{key} = {shown(value)}: must be {must}") from None
    if "rate_per_s" in fields:
        # A new rate means that control is wanted, so it ends an override.
        fields.setdefault("manual", None)
        fields["only_manual"] = False
    found = msgspec.structs.replace(goal, **fields)
    check_goal(found)
    return found


def check_goal(goal: PrefetchGoal) -> None:
    """Raise `InvalidValue` unless a node can pursue the goal and a store can keep it."""
    goal.check()
    if not _SAMPLE_S_MIN <= goal.sample_s <= _DURATION_S_MAX:
        raise InvalidValue(f"sample {goal.sample_s:g} s: must be at least {_SAMPLE_S_MIN:g} s")
    if not SETTLING_SAMPLES_MIN * goal.sample_s <= goal.settle_s <= _DURATION_S_MAX:
        least = format_duration(SETTLING_SAMPLES_MIN * goal.sample_s)
        raise InvalidValue(
            f"settle {goal.settle_s:g} s: must be at least {SETTLING_SAMPLES_MIN} samples "
            f"({least}) and at most a day; shorter samples (`sample`) can settle sooner"
        )
    if goal.manual is not None and not goal.low <= goal.manual <= goal.high:
        raise InvalidValue(
            f"manual {goal.manual}: must be between low {goal.low} and high {goal.high}"
        )
    if goal.model is not None:
        # JSON has neither infinity nor NaN, and a policy that cannot be read back makes its queue
        # unusable. Fields that may be unknown are left out of the JSON.
        for field in msgspec.structs.fields(goal.model):
            value = getattr(goal.model, field.name)
            may_be_unknown = isinstance(field.default, float) and math.isnan(field.default)
            if isinstance(value, float) and not (
                math.isfinite(value) or (may_be_unknown and math.isnan(value))
            ):
                raise InvalidValue(f"{field.name} = {value} of the model: must be a finite number")


def told(goal: PrefetchGoal | None) -> str:
    """Return a goal in a few words."""
    if goal is None:
        return "off"
    if goal.manual is not None:
        return f"{goal.manual} by hand"
    wanted = KEEP_UP if goal.rate_per_s is None else f"{goal.rate_per_s:g}/s"
    return (
        f"{wanted} by {goal.controller}, settles in {format_duration(goal.settle_s)}, overshoot "
        f"{100 * goal.overshoot:g} %, prefetch {goal.low} to {goal.high}"
        + ("" if goal.model is None else ", own model")
    )


def written(goal: PrefetchGoal) -> dict[str, Any]:
    """Return every key of a goal in its text form."""
    shown_as: dict[str, Any] = {}
    for key, (field, _, _) in _KEYS.items():
        value = getattr(goal, field)
        if key == "rate":
            value = KEEP_UP if value is None else f"{value:g}/s"
        elif field.endswith("_s"):
            value = format_duration(value)
        elif key == "overshoot":
            value = f"{100 * value:g}%"
        elif isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value)
        shown_as[key] = value
    return shown_as
