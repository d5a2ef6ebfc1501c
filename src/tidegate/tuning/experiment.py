"""The tuning procedure: from a running consumer to a controller for its prefetch.

    sweep        measure the open loop and its linear range
    excite       set random prefetches within the linear range
    identify     fit a and b to three quarters, judge the rest (as in Spark)
    design       as a running loop does, then check the poles

Theory of operation

**Actors.** `tune` is called by `tidegate tune prefetch` with a goal and a `TunableConsumer`: a
probe that feeds itself, or the user's own worker. All measurements go through one
`ExperimentSampler`. It sets a prefetch, waits for one sampling interval, and appends the sample to
the `ExperimentRecord`. Everything runs in one task. The caller opens the consumer and closes it in
every case.

**Phases.** Each sample belongs to a phase. SWEEP samples measure the open-loop curve. SETTLING
samples are taken while the plant moves to a new operating point, and are not used for the fit. FIT
and HELD_OUT samples come from the excitation: the first three quarters are fitted, the rest judges.

**Two rounds.** The first round excites the whole linear range. A second round follows if its model
is not accepted or does not cover the target. It excites only the range from half to twice the
prefetch of the target. A curve that bends everywhere is nearly a line there. If only the first
model is accepted, it is used.

**Invariants.**
- A sample during which the queue was empty is never used, because the producers decided its rate.
- A model is used only if it explains the held-out samples.
- A running loop with the same goal and model computes the same gains.

**Failures.** If the measurements do not allow the next step, `TuningRefused` says why, and carries
the record for inspection. An error of the consumer or the broker ends the experiment in the same
way. Neither case returns a design.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tidegate.core.errors import TidegateError
from tidegate.core.quantities import format_duration
from tidegate.core.tunable import TunableConsumer
from tidegate.laws.closed_loop import ClosedLoop, design, vet
from tidegate.laws.controller_design import DesignRefused, Requirement
from tidegate.laws.identification import Identified, identify
from tidegate.laws.least_squares import Model, Sums
from tidegate.laws.linear_range import LinearRange
from tidegate.laws.prefetch_design import designed_for
from tidegate.tuning.excitation import excitation
from tidegate.tuning.origin import Origin
from tidegate.tuning.record import Measured, Phase, Record
from tidegate.tuning.refusal import TuningRefused
from tidegate.tuning.sampling import Heard, Sampling
from tidegate.tuning.steps import sweep_samples
from tidegate.tuning.sweep import BELOW_KNEE_MIN, range_to_excite, sweep
from tidegate.tuning.tuned import TunedController, TunedModel
from tidegate.tuning.wish import Wish

# Fraction of the ceiling; a target above it is met only without disturbances.
NEAR_CEILING = 0.95
# Factor around the prefetch that gives the target, which a disturbance may require.
TARGET_ROOM = 2
# Round trips per sample. With fewer, a sample contains one round of credit more or less by chance.
AWAY_TIMES = 10


@dataclass(frozen=True)
class Tuned:
    """The complete result of an experiment."""

    model: TunedModel
    identified: Identified
    loop: ClosedLoop
    record: Record


async def tune(consumer: TunableConsumer, wish: Wish, heard: Heard, origin: Origin) -> Tuned:
    """Run the experiment and return the model and its controller.

    Raises `TuningRefused` with the record if a step is not possible.
    """
    record = Record()
    # The excitation may run twice: again around the target if the curve bends.
    samples = sweep_samples(wish.low, wish.high) + 2 * wish.excited_samples
    sampling = Sampling(consumer, wish.sample_s, record, heard, samples)
    try:
        await sweep(sampling, wish.low, wish.high)
        line = range_to_excite(sampling, wish)
        identified = await excited(sampling, wish, int(line.high))
        loop = designed(identified, wish)
    except TuningRefused as refused:
        raise TuningRefused(str(refused), record) from None
    except TidegateError as failure:
        # Keep the samples measured so far for inspection.
        told = f"the experiment was cut short: {failure}. Start it again when that is mended"
        raise TuningRefused(told, record) from failure
    known = identified.linear_range
    model = TunedModel(
        a=identified.a,
        b=identified.b,
        offset_per_s=identified.offset_per_s,
        a_error=identified.a_error,
        b_error=identified.b_error,
        sample_s=wish.sample_s,
        low=int(known.low),
        high=int(known.high),
        ceiling_per_s=math.nan if math.isnan(line.slope_beyond) else record.ceiling_per_s,
        r2_test=identified.r2_test,
        rmse_test_per_s=identified.rmse_test_per_s,
        r2_train=identified.r2_train,
        rmse_train_per_s=identified.rmse_train_per_s,
        n_train=identified.n_train,
        n_test=identified.n_test,
        engine=origin.engine,
        queue=origin.queue,
        made_at=origin.made_at,
        target_per_s=wish.target_per_s,
        controller=TunedController.of(loop, wish.sample_s),
        measured_on=consumer.says,
        notes=tuple(notes(identified, wish, line, record)),
    )
    return Tuned(model, identified, loop, record)


async def excited(sampling: Sampling, wish: Wish, high: int) -> Identified:
    """Return an accepted model: over the linear range, or at least around the target.

    Raises `TuningRefused` if both rounds of excitation fail. A curve that bends everywhere is
    nowhere a line, but nearly one around the operating point of the loop.
    """
    record, random = sampling.record, Random(wish.seed)
    needed = record.prefetch_at(wish.target_per_s)
    whole = await _round(sampling, wish, wish.low, high, random)
    if whole.accepted and whole.linear_range.contains(min(needed, high)):
        return whole
    reason = whole.reason
    near = _near_target(needed, wish.low, high)
    if near != (wish.low, high):
        before = record.set_aside(Phase.FIT, Phase.HELD_OUT)
        around = await _round(sampling, wish, *near, random)
        if around.accepted:
            return around
        reason = around.reason
        if whole.accepted:
            record.measured = before
    if whole.accepted:
        return whole
    raise TuningRefused(
        f"no model was accepted: {reason}. Is somebody else using the machine, the queue or "
        "the network at times? Try again in a calm moment, with longer samples (--sample) or more "
        "of them (--duration)"
    )


async def _round(sampling: Sampling, wish: Wish, low: int, high: int, random: Random) -> Identified:
    moves = excitation(low, high, wish.excited_samples, random)
    # The first samples still work off messages from the previous prefetch, perhaps hundreds.
    await sampling.rest(Phase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.take(phase, prefetch)
    return identified_of(sampling.record)


def _near_target(needed: int, low: int, high: int) -> tuple[int, int]:
    """Return the range from half to twice the prefetch of the target, within the linear range."""
    top = min(max(TARGET_ROOM * needed, low + BELOW_KNEE_MIN - 1), high)
    return max(min(needed // TARGET_ROOM, top - BELOW_KNEE_MIN + 1), low), top


def identified_of(record: Record) -> Identified:
    """Identify the model from the record by the law that Spark uses."""
    return identify(
        sums_by_prefetch(record.of(Phase.FIT)), sums_by_prefetch(record.of(Phase.HELD_OUT))
    )


def sums_by_prefetch(samples: Sequence[Measured]) -> dict[float, Sums]:
    """Return the sums by prefetch of the samples that follow a usable sample."""
    sums: dict[float, Sums] = {}
    for one in samples:
        if one.before_per_s is None:
            continue
        u = float(one.prefetch)
        sample = Sums.of(y=one.before_per_s, u=u, y_next=one.rate_per_s)
        sums[u] = sums[u] + sample if u in sums else sample
    return sums


def designed(found: Identified, wish: Wish) -> ClosedLoop:
    """Return the loop with the controller that a running loop uses for this goal and model.

    Raises `TuningRefused` if no controller keeps the goal.
    """
    model = Model(a=found.a, b=found.b, offset_per_s=found.offset_per_s)
    running = designed_for(wish.goal(), model)
    try:
        if running.given_up:
            # This design refuses with the poles of the formulas in its text.
            design(model, running.gains.kind, Requirement(wish.settling_samples, wish.overshoot))
            raise DesignRefused(running.given_up)
        return vet(model, running.gains, running.requirement.late_samples)
    except DesignRefused as refused:
        raise TuningRefused(
            f"the model is good (a = {found.a:.4g}, b = {found.b:.4g}, R² {found.r2_test:.3f} on "
            f"held-out data), but {refused}"
        ) from None


def notes(found: Identified, wish: Wish, line: LinearRange, record: Record) -> list[str]:
    """Return notes for the user that do not prevent the use of the model."""
    said: list[str] = []
    if math.isnan(line.slope_beyond):
        said.append(
            f"the rate still grows at prefetch {wish.high}: the ceiling was not seen (--to)"
        )
    elif wish.target_per_s > NEAR_CEILING * record.ceiling_per_s:
        said.append(
            f"the target is close to the ceiling of {record.ceiling_per_s:.0f} msg/s: little is "
            "left to make up for a disturbance"
        )
    top = settled_per_s(found, found.linear_range.high)
    if wish.target_per_s > top:
        said.append(f"the target is above {top:.0f} msg/s, up to which the model was seen to hold")
    lowest = record.open_loop[0]
    away_s = lowest.prefetch / lowest.rate_per_s if lowest.rate_per_s > 0.0 else math.inf
    if wish.sample_s < AWAY_TIMES * away_s:
        said.append(
            f"a message is away for about {1e3 * away_s:.0f} ms: samples of "
            f"{format_duration(AWAY_TIMES * away_s)} or more would be steadier (--sample)"
        )
    if record.starved:
        said.append(f"{record.starved} samples in which the queue was empty were left out")
    return said


def settled_per_s(found: Identified | TunedModel, prefetch: float) -> float:
    """Return the steady-state rate at a prefetch, as the model predicts it."""
    return (found.b * prefetch + found.offset_per_s) / (1.0 - found.a)
