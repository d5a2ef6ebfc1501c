"""From a goal and a model to the gains that a running loop has, and what of the goal they give up.

    designed = designed_for(goal, resampled(model, goal.sample_s))

Strategy: with all the reserve that can be had in the time asked for; else in a longer time, and the
words for that are kept; else gains of 0, which hold. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.laws.controller_design import Requirement, find
from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import Gains, Kind, steady_rate_per_s
from tidegate.laws.step_figures import SETTLED_BAND

# Of the settling time, what a design is to need on its model: on a plant that answers half as much,
# such as behind a round trip twice as long, the same gains need nearly twice as long.
IN_RESERVE = 0.55
# A settling time that cannot be had is made longer by a quarter, and so on to that many times; and
# to so many samples, since a goal of a few samples was not meant.
LONGER, LONGEST, LONGEST_AT_LEAST = 1.25, 2.0, 40


class Designed(NamedTuple):
    """Gains, and what they keep."""

    gains: Gains
    requirement: Requirement
    # What had to be given up; "": nothing.
    given_up: str


def designed_for(goal: PrefetchGoal, model: Model) -> Designed:
    """The gains that a loop runs with: with all the reserve that can be had in time, or later."""
    kind = Kind(goal.controller.value)
    samples = int(goal.settle_s / goal.sample_s)
    tried = asked = requirement_of(goal)
    while tried.settling_samples <= LONGEST * samples + LONGEST_AT_LEAST:
        placed = find(model, kind, tried)
        if placed is None:
            longer = math.ceil(LONGER * tried.settling_samples)
            tried = replace(tried, settling_samples=longer)
            continue
        settle_s = tried.settling_samples * goal.sample_s
        given_up = f"{goal.settle_s:g} s to settle cannot be had, but {settle_s:g} s"
        in_time = tried.settling_samples <= samples
        return Designed(placed.gains, tried, "" if in_time else given_up)
    return Designed(
        Gains(kind, 0.0),
        asked,
        f"no controller keeps the goal on a = {model.a:.3g}, b = {model.b:.3g}: "
        "held; allow more time, or identify the consumer again",
    )


def words_of_offset(goal: PrefetchGoal, model: Model, gains: Gains, target_per_s: float) -> str:
    """How far off its target the rate comes to rest, by the model; "": not so that it matters."""
    if gains.kind is not Kind.P or not target_per_s > 0.0:
        return ""
    error_per_s = target_per_s - steady_rate_per_s(model, gains, target_per_s)
    prefetch = min(max(gains.proportional * error_per_s, float(goal.low)), float(goal.high))
    rests_per_s = (model.b * prefetch + model.offset_per_s) / (1.0 - model.a)
    if abs(target_per_s - rests_per_s) <= SETTLED_BAND * target_per_s:
        return ""
    return (
        f"P keeps an offset: it rests at about {rests_per_s:.3g}/s with a prefetch of "
        f"{prefetch:.3g}, and not at {target_per_s:g}/s; PI keeps none"
    )


def requirement_of(goal: PrefetchGoal) -> Requirement:
    """What a running loop is designed for: with reserve, and calm."""
    samples = goal.settle_s / goal.sample_s
    return Requirement(
        max(math.ceil(IN_RESERVE * samples), 1), overshoot=goal.overshoot, is_calm=True
    )


def resampled(model: PrefetchModel, sample_s: float) -> Model:
    """The model for samples of another length: as quick in seconds, and the same at rest."""
    known = Model(model.a, model.b, model.offset_per_s)
    return stretched(known, sample_s / model.sample_s)


def stretched(model: Model, times: float) -> Model:
    """The model for samples that are so many times as long."""
    if times == 1.0:
        return model
    # An a below 0 alternates from sample to sample, which no other interval shows.
    a = model.a**times if model.a > 0.0 else 0.0
    scale = (1.0 - a) / (1.0 - model.a)
    return Model(a, model.b * scale, model.offset_per_s * scale)
