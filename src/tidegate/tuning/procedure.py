"""From a consumer to a controller: sweep, excite, identify, design.

    sweep        the open loop, and how far it is a line          (sweep.py)
    excitation   random prefetches within the line                (excitation.py)
    identify     a and b from three quarters, judged on the rest  (laws.identification, as in Spark)
    design       as the running loop does it, looked through      (laws.prefetch_steering)

Whatever does not allow the next step ends it with TuningRefused, and designs nothing. Who calls
closes the consumer, however this ends.
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

# Of the ceiling: a target above it is met only while nothing disturbs.
NEAR_CEILING = 0.95
# So many times the prefetch that gives the target, or its part, a disturbance may need.
TARGET_ROOM = 2
# Credit goes round: a sample of fewer rounds sees now one more, now one less.
AWAY_TIMES = 10


@dataclass(frozen=True)
class Tuned:
    """Everything that an experiment has found."""

    model: TunedModel
    identified: Identified
    loop: ClosedLoop
    record: Record


async def tune(consumer: TunableConsumer, wish: Wish, heard: Heard, origin: Origin) -> Tuned:
    """Experiment, fit, design; TuningRefused says why not."""
    record = Record()
    # Twice the excitation: once more around the target, if the curve bends.
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
        # What was measured until then can be looked at all the same.
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
    """A model that was accepted: over the whole line, or at least around the target.

    What bends all the way is a line nowhere, and yet nearly one where the loop will work.
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
    # From where it was, which may have been hundreds of messages in its hands.
    await sampling.rest(Phase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.take(phase, prefetch)
    return identified_of(sampling.record)


def _near_target(needed: int, low: int, high: int) -> tuple[int, int]:
    """From half to twice the prefetch that gives the target, as far as there is a line."""
    top = min(max(TARGET_ROOM * needed, low + BELOW_KNEE_MIN - 1), high)
    return max(min(needed // TARGET_ROOM, top - BELOW_KNEE_MIN + 1), low), top


def identified_of(record: Record) -> Identified:
    """The law that Spark uses, on the samples of this experiment."""
    return identify(
        sums_by_prefetch(record.of(Phase.FIT)), sums_by_prefetch(record.of(Phase.HELD_OUT))
    )


def sums_by_prefetch(samples: Sequence[Measured]) -> dict[float, Sums]:
    """Of the samples that have one before them."""
    sums: dict[float, Sums] = {}
    for one in samples:
        if one.before_per_s is None:
            continue
        u = float(one.prefetch)
        sample = Sums.of(y=one.before_per_s, u=u, y_next=one.rate_per_s)
        sums[u] = sums[u] + sample if u in sums else sample
    return sums


def designed(found: Identified, wish: Wish) -> ClosedLoop:
    """The controller that a loop with this goal and model runs, or why there is none."""
    model = Model(a=found.a, b=found.b, offset_per_s=found.offset_per_s)
    running = designed_for(wish.goal(), model)
    try:
        if running.given_up:
            # Refused with the poles that the formulas want.
            design(model, running.gains.kind, Requirement(wish.settling_samples, wish.overshoot))
            raise DesignRefused(running.given_up)
        return vet(model, running.gains, running.requirement.late_samples)
    except DesignRefused as refused:
        raise TuningRefused(
            f"the model is good (a = {found.a:.4g}, b = {found.b:.4g}, R² {found.r2_test:.3f} on "
            f"held-out data), but {refused}"
        ) from None


def notes(found: Identified, wish: Wish, line: LinearRange, record: Record) -> list[str]:
    """What is worth knowing, and yet no reason to refuse."""
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
    """Where the rate comes to rest at a prefetch, by the model."""
    return (found.b * prefetch + found.offset_per_s) / (1.0 - found.a)
