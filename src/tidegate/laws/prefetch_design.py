"""Design of a running prefetch loop: from a goal and a model to gains.

    design = design_for(goal, resample_model(model, goal.sample_s))

The design first tries to keep the requested settling time with the largest possible reserve. If no
design does, it allows a longer settling time and reports it. If that fails too, the gains are 0,
which holds the prefetch. The module uses the standard library only.
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

# Fraction of the settling time that a design may need on its model. On a plant with half the
# response, such as behind a round trip twice as long, the same gains take nearly twice as long.
IN_RESERVE = 0.55
# Factor of each extension of an unattainable settling time, and its limit: a multiple of the
# requested samples plus a constant, so that a goal of a few samples can be extended enough.
LONGER, LONGEST, LONGEST_AT_LEAST = 1.25, 2.0, 40


class Designed(NamedTuple):
    """Gains, and the requirement that they keep."""

    gains: Gains
    requirement: Requirement
    # The part of the goal that is not kept. Empty means that all of it is.
    given_up: str


def designed_for(goal: PrefetchGoal, model: Model) -> Designed:
    """Return the gains for a goal: in the requested time with reserve, else in a longer time."""
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
    """Describe the steady-state error that the model predicts for P.

    Returns an empty text if the error is within the settling band, and for PI and PID.
    """
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
    """Return the requirement for a running loop: with reserve, and preferring the calm design."""
    samples = goal.settle_s / goal.sample_s
    return Requirement(
        max(math.ceil(IN_RESERVE * samples), 1), overshoot=goal.overshoot, is_calm=True
    )


def resampled(model: PrefetchModel, sample_s: float) -> Model:
    """Return the model for samples of another length, equally fast in seconds and equal at rest."""
    known = Model(model.a, model.b, model.offset_per_s)
    return stretched(known, sample_s / model.sample_s)


def stretched(model: Model, times: float) -> Model:
    """Return the model for samples that are `times` as long."""
    if times == 1.0:
        return model
    # An a below 0 alternates from sample to sample, which no other interval can show.
    a = model.a**times if model.a > 0.0 else 0.0
    scale = (1.0 - a) / (1.0 - model.a)
    return Model(a, model.b * scale, model.offset_per_s * scale)
