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

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median, pvariance

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.prefetch import TunableConsumer
from tidegate.core.text import format_duration
from tidegate.laws.estimation import (
    IdentifiedModel,
    Level,
    LinearRange,
    Shape,
    identify,
    linear_range,
)
from tidegate.laws.prefetch.design import DesignRefused, Requirement, design_for
from tidegate.laws.prefetch.fit import LinearModel, RegressionSums
from tidegate.tuning import ExperimentOrigin, TuningGoal, sweep_prefetches, sweep_samples
from tidegate.tuning.result import (
    ClosedLoop,
    TunedController,
    TunedModel,
    check_gains,
    design_controller,
)

# Fraction of the ceiling; a target above it is met only without disturbances.
NEAR_CEILING = 0.95
# Factor around the prefetch that gives the target, which a disturbance may require.
TARGET_ROOM = 2
# Round trips per sample. With fewer, a sample contains one round of credit more or less by chance.
AWAY_TIMES = 10


@dataclass(frozen=True)
class TuningResult:
    """The complete result of an experiment."""

    model: TunedModel
    identified: IdentifiedModel
    loop: ClosedLoop
    record: ExperimentRecord


async def tune(
    consumer: TunableConsumer, wish: TuningGoal, heard: OnSample, origin: ExperimentOrigin
) -> TuningResult:
    """Run the experiment and return the model and its controller.

    Raises `TuningRefused` with the record if a step is not possible.
    """
    record = ExperimentRecord()
    # The excitation may run twice: again around the target if the curve bends.
    samples = sweep_samples(wish.low, wish.high) + 2 * wish.excited_samples
    sampling = ExperimentSampler(consumer, wish.sample_s, record, heard, samples)
    try:
        await sweep(sampling, wish.low, wish.high)
        line = range_to_excite(sampling, wish)
        identified = await identify_by_excitation(sampling, wish, int(line.high))
        loop = tuned_controller(identified, wish)
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
        measured_on=consumer.description,
        notes=tuple(tuning_notes(identified, wish, line, record)),
    )
    return TuningResult(model, identified, loop, record)


async def identify_by_excitation(
    sampling: ExperimentSampler, wish: TuningGoal, high: int
) -> IdentifiedModel:
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
        before = record.set_aside(ExperimentPhase.FIT, ExperimentPhase.HELD_OUT)
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


async def _round(
    sampling: ExperimentSampler, wish: TuningGoal, low: int, high: int, random: Random
) -> IdentifiedModel:
    moves = excitation(low, high, wish.excited_samples, random)
    # The first samples still work off messages from the previous prefetch, perhaps hundreds.
    await sampling.measure_at_rest(ExperimentPhase.SETTLING, moves[0][1])
    for phase, prefetch in moves:
        await sampling.measure(phase, prefetch)
    return identify_samples(sampling.record)


def _near_target(needed: int, low: int, high: int) -> tuple[int, int]:
    """Return the range from half to twice the prefetch of the target, within the linear range."""
    top = min(max(TARGET_ROOM * needed, low + BELOW_KNEE_MIN - 1), high)
    return max(min(needed // TARGET_ROOM, top - BELOW_KNEE_MIN + 1), low), top


def identify_samples(record: ExperimentRecord) -> IdentifiedModel:
    """Identify the model from the record by the law that Spark uses."""
    return identify(
        sums_by_prefetch(record.of(ExperimentPhase.FIT)),
        sums_by_prefetch(record.of(ExperimentPhase.HELD_OUT)),
    )


def sums_by_prefetch(samples: Sequence[MeasuredStep]) -> dict[float, RegressionSums]:
    """Return the sums by prefetch of the samples that follow a usable sample."""
    sums: dict[float, RegressionSums] = {}
    for one in samples:
        if one.before_per_s is None:
            continue
        u = float(one.prefetch)
        sample = RegressionSums.of(y=one.before_per_s, u=u, y_next=one.rate_per_s)
        sums[u] = sums[u] + sample if u in sums else sample
    return sums


def tuned_controller(found: IdentifiedModel, wish: TuningGoal) -> ClosedLoop:
    """Return the loop with the controller that a running loop uses for this goal and model.

    Raises `TuningRefused` if no controller keeps the goal.
    """
    model = LinearModel(a=found.a, b=found.b, offset_per_s=found.offset_per_s)
    running = design_for(wish.goal(), model)
    try:
        if running.given_up:
            # This design refuses with the poles of the formulas in its text.
            design_controller(
                model, running.gains.kind, Requirement(wish.settling_samples, wish.overshoot)
            )
            raise DesignRefused(str(running.given_up))
        return check_gains(model, running.gains, running.requirement.late_samples)
    except DesignRefused as refused:
        raise TuningRefused(
            f"the model is good (a = {found.a:.4g}, b = {found.b:.4g}, R² {found.r2_test:.3f} on "
            f"held-out data), but {refused}"
        ) from None


def tuning_notes(
    found: IdentifiedModel, wish: TuningGoal, line: LinearRange, record: ExperimentRecord
) -> list[str]:
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


def settled_per_s(found: IdentifiedModel | TunedModel, prefetch: float) -> float:
    """Return the steady-state rate at a prefetch, as the model predicts it."""
    return (found.b * prefetch + found.offset_per_s) / (1.0 - found.a)


# The sweep: measures the open loop at few prefetches, to find where the rate stops growing.
#
# Each prefetch is √2 times the previous one. Each is held until two samples in a row agree, so
# that a slow plant gets enough time and a fast one costs two samples. When three steps have gained
# almost nothing, the knee is behind, and only the largest prefetch is still measured. If it gives
# more after all, the skipped prefetches are measured too.


# The rate grew by less than a tenth while the prefetch grew by a factor of 2.8.
FLAT_STEPS = 3
FLAT_GROWTH = 1.1
# Prefetches below the knee that a line needs, and the fraction of the way to the knee that is
# surely linear.
BELOW_KNEE_MIN = 4
SAFELY_BELOW = 0.9


async def sweep(sampling: ExperimentSampler, low: int, high: int) -> None:
    """Measure the open loop and add its points to the record."""
    points: list[OpenLoopPoint] = []
    skipped: list[int] = []
    for prefetch in sweep_prefetches(low, high):
        if prefetch < high and _is_flat(points):
            skipped.append(prefetch)
            continue
        points.append(await _point(sampling, prefetch))
    most_before = max(one.rate_per_s for one in points[:-1])
    if skipped and points[-1].rate_per_s > FLAT_GROWTH * most_before:
        for prefetch in skipped:
            await _point(sampling, prefetch)


def _is_flat(points: list[OpenLoopPoint]) -> bool:
    if len(points) <= FLAT_STEPS:
        return False
    return points[-1].rate_per_s < FLAT_GROWTH * points[-1 - FLAT_STEPS].rate_per_s


async def _point(sampling: ExperimentSampler, prefetch: int) -> OpenLoopPoint:
    rates = await sampling.measure_at_rest(ExperimentPhase.SWEEP, prefetch)
    if not rates:
        raise TuningRefused(
            f"at prefetch {prefetch} the queue was empty in every sample. {sampling.enough()}",
            sampling.record,
        )
    return sampling.record.add_point(prefetch, rates)


def range_to_excite(sampling: ExperimentSampler, wish: TuningGoal) -> LinearRange:
    """Return the range in which the rate is linear in the prefetch and the target can be reached.

    Raises `TuningRefused` if there is no such range.
    """
    record = sampling.record
    ceiling = record.ceiling_per_s
    if ceiling <= 0.0:
        raise TuningRefused(
            "not one message arrived at any prefetch: is somebody else taking all of them, or is "
            "the queue paused?",
            record,
        )
    enough = record.prefetch_of(NEARLY_ALL)
    found = linear_range(record.levels())
    if found.shape is Shape.SATURATED or enough < wish.low + BELOW_KNEE_MIN - 1:
        lowest = record.open_loop[0]
        raise TuningRefused(
            f"prefetch does not matter here: {lowest.prefetch} already gives "
            f"{lowest.rate_per_s:.0f} of {ceiling:.0f} msg/s, which is the most at any prefetch up "
            f"to {wish.high}. A fixed prefetch of {enough} is right, and there is nothing to "
            "steer; a higher rate needs a faster handler or more consumers",
            record,
        )
    if found.shape is Shape.UNKNOWN:
        raise TuningRefused(found.reason, record)
    _check_target(wish, found, record)
    if found.shape is Shape.LINEAR:
        return found
    # The steps of the sweep are coarse, so the knee is where the line meets the ceiling.
    lowest = record.open_loop[0]
    knee = lowest.prefetch + (ceiling - lowest.rate_per_s) / found.slope
    high = min(math.floor(SAFELY_BELOW * knee), record.prefetch_of(NEARLY_ALL), wish.high)
    high = max(high, wish.low + BELOW_KNEE_MIN - 1)
    return LinearRange(
        found.shape, found.low, float(high), found.slope, found.slope_beyond, found.reason
    )


def _check_target(wish: TuningGoal, found: LinearRange, record: ExperimentRecord) -> None:
    target, ceiling = wish.target_per_s, record.ceiling_per_s
    if target > ceiling:
        if found.shape is Shape.LINEAR:
            advice = (
                f"at prefetch {wish.high}, and the rate still grows with it: allow more with --to"
            )
        else:
            advice = (
                f"from prefetch {record.prefetch_of(NEARLY_ALL)} on. Ask for less than that, make "
                "the handler faster, or add consumers"
            )
        raise TuningRefused(
            f"{target:g} msg/s is above the ceiling: {ceiling:.0f} msg/s was the most, {advice}"
        )
    lowest = record.open_loop[0]
    if target < NEARLY_ALL * lowest.rate_per_s:
        less = "set a lower --from" if wish.low > 1 else "a prefetch cannot be smaller than 1"
        raise TuningRefused(
            f"{target:g} msg/s is below what prefetch {lowest.prefetch} gives already, "
            f"{lowest.rate_per_s:.0f} msg/s: {less}; what is to be slower than that has to be "
            "slowed down in its handler or at its producers"
        )


# Excitation: prefetches that separate a from b. Levels are random, and held for some samples.
#
# A constant prefetch gives no information about b. A prefetch that changes more slowly than the
# rate follows moves together with it on one line. Every level occurs equally often, in a new random
# order each round, so no part of the experiment misses a level by chance. Each level is held for
# one, two or three samples.


HOLD_SAMPLES = (1, 2, 3)
LEVELS_MAX = 10
# Quarters of the samples that are fitted.
FIT_OF_FOUR = 3


def levels_within(low: int, high: int) -> list[int]:
    """Return at most `LEVELS_MAX` evenly spaced prefetches, both ends included."""
    count = min(high - low + 1, LEVELS_MAX)
    return sorted({round(low + (high - low) * step / (count - 1)) for step in range(count)})


def excitation(
    low: int, high: int, samples: int, random: Random
) -> list[tuple[ExperimentPhase, int]]:
    """Return the phase and prefetch of every sample: first FIT, then HELD_OUT."""
    levels = levels_within(low, high)
    to_fit = samples * FIT_OF_FOUR // 4
    return [
        *((ExperimentPhase.FIT, prefetch) for prefetch in _moves(levels, to_fit, random)),
        *(
            (ExperimentPhase.HELD_OUT, prefetch)
            for prefetch in _moves(levels, samples - to_fit, random)
        ),
    ]


def _moves(levels: list[int], samples: int, random: Random) -> list[int]:
    moves: list[int] = []
    while len(moves) < samples:
        shuffled = random.sample(levels, len(levels))
        for prefetch in shuffled:
            moves += [prefetch] * random.choice(HOLD_SAMPLES)
    return moves[:samples]


# The record of an experiment: every sample, and the open-loop curve that they form.


# Rates above this fraction of the ceiling count as the ceiling.
NEARLY_ALL = 0.95
# On a line, only the largest prefetch of a sweep gives this fraction of the largest rate.
ABOUT_AS_MUCH = 0.8


class ExperimentPhase(enum.StrEnum):
    """The purpose of a sample."""

    SWEEP = "sweep"
    # Samples between two parts of the experiment, or at prefetches outside the linear range.
    SETTLING = "settling"
    FIT = "fit"
    HELD_OUT = "held-out"


class MeasuredStep(msgspec.Struct, frozen=True):
    """One sample: y(k+1) at the prefetch u(k), and the previous rate y(k)."""

    phase: ExperimentPhase
    prefetch: int
    rate_per_s: float
    # `None` means that the previous sample was not usable.
    before_per_s: float | None


class OpenLoopPoint(msgspec.Struct, frozen=True):
    """The mean rate at one prefetch of the sweep."""

    prefetch: int
    rate_per_s: float
    deviation_per_s: float
    samples: int


class ExperimentRecord(msgspec.Struct):
    """The samples of an experiment in temporal order."""

    measured: list[MeasuredStep] = []
    open_loop: list[OpenLoopPoint] = []
    # Samples during which the queue had nothing to deliver.
    starved: int = 0

    def of(self, *phases: ExperimentPhase) -> list[MeasuredStep]:
        return [one for one in self.measured if one.phase in phases]

    def set_aside(self, *phases: ExperimentPhase) -> list[MeasuredStep]:
        """Mark the samples of these phases as SETTLING, because a later round replaces them.

        Returns the samples as they were before.
        """
        before = self.measured
        self.measured = [
            msgspec.structs.replace(one, phase=ExperimentPhase.SETTLING)
            if one.phase in phases
            else one
            for one in before
        ]
        return before

    def add_point(self, prefetch: int, rates_per_s: list[float]) -> OpenLoopPoint:
        point = OpenLoopPoint(
            prefetch, fmean(rates_per_s), pvariance(rates_per_s) ** 0.5, len(rates_per_s)
        )
        self.open_loop.append(point)
        self.open_loop.sort(key=lambda one: one.prefetch)
        return point

    def levels(self) -> list[Level]:
        """Return the points in the form that `linear_range` expects."""
        return [
            Level(float(one.prefetch), float(one.samples), one.rate_per_s, one.deviation_per_s**2)
            for one in self.open_loop
        ]

    @property
    def ceiling_per_s(self) -> float:
        """The ceiling: the median of the rates that are close to the largest one.

        A single high sample is no ceiling.
        """
        rates = [one.rate_per_s for one in self.open_loop]
        return median(rate for rate in rates if rate >= ABOUT_AS_MUCH * max(rates))

    def prefetch_of(self, part: float) -> int:
        """Return the smallest prefetch of the sweep that gave this fraction of the ceiling."""
        return self.prefetch_at(part * self.ceiling_per_s)

    def prefetch_at(self, rate_per_s: float) -> int:
        """Return the smallest prefetch of the sweep that gave this rate, else the largest."""
        points = self.open_loop
        enough = (one.prefetch for one in points if one.rate_per_s >= rate_per_s)
        return next(enough, points[-1].prefetch)


# Sampling: measures a consumer sample by sample into a record.
#
# A sample during which the queue was empty shows the rate of the producers and not the effect of
# the prefetch. It is left out, and too many of them end the experiment.


# Largest fraction of starved samples, and the number of samples before it is checked.
STARVED_MAX = 0.25
STARVED_AFTER = 4
# Two samples that differ by less than this fraction count as steady state.
AGREE = 0.05
SAMPLES_MAX = 6

# Called with phase, prefetch and rate of each sample.
OnSample = Callable[[ExperimentPhase, int, float], None]


class ExperimentSampler:
    """Sets a prefetch, measures one sample, and records it."""

    def __init__(
        self,
        consumer: TunableConsumer,
        sample_s: float,
        record: ExperimentRecord,
        heard: OnSample,
        samples: int = 0,
    ) -> None:
        self._consumer = consumer
        self._sample_s = sample_s
        self._heard = heard
        self._before_per_s: float | None = None
        # Number of samples planned for the whole experiment.
        self._samples = samples
        self._taken = 0
        self.record = record

    async def measure(self, phase: ExperimentPhase, prefetch: int) -> float:
        """Measure one sample at this prefetch, and return its rate, or NaN if the queue was empty.

        Raises `TuningRefused` if too many samples were starved.
        """
        await self._consumer.set_prefetch(prefetch)
        sample = await self._consumer.measure(self._sample_s)
        self._taken += 1
        rate = sample.arrived_per_s
        self._heard(phase, prefetch, rate)
        if sample.starved:
            self.record.starved += 1
            self._before_per_s = None
            self._end_if_starving()
            return math.nan
        self.record.measured.append(MeasuredStep(phase, prefetch, rate, self._before_per_s))
        self._before_per_s = rate
        return rate

    async def measure_at_rest(self, phase: ExperimentPhase, prefetch: int) -> list[float]:
        """Return the steady-state rates at a prefetch.

        The list is empty if the queue was empty in every sample.
        """
        rates: list[float] = []
        for _ in range(SAMPLES_MAX):
            rate = await self.measure(phase, prefetch)
            if math.isnan(rate):
                continue
            rates.append(rate)
            if len(rates) >= 2 and abs(rates[-1] - rates[-2]) <= AGREE * max(rates[-2:]):
                return rates[-2:]
        # The samples never agree because of noise. Leave out the first one, in which the plant
        # still moved.
        return rates[1:] or rates

    def _end_if_starving(self) -> None:
        starved, taken = self.record.starved, self._taken
        if taken >= STARVED_AFTER and starved > STARVED_MAX * taken:
            raise TuningRefused(
                f"the queue was empty in {starved} of {taken} samples: then whoever fills it "
                f"decides the rate, and not the prefetch. {self.enough()}",
                self.record,
            )

    def enough(self) -> str:
        """Return advice for the user on how to keep the queue filled."""
        if self._consumer.feeds_itself:
            return (
                "The probe feeds it as fast as it can: give its handler the time that yours takes "
                "(--handler-time), have it put smaller messages (--size), or measure while machine "
                "and broker have less to do"
            )
        most = max((one.rate_per_s for one in self.record.measured), default=0.0)
        needed = most * self._sample_s * self._samples
        told = f"{float(f'{needed:.2g}'):,.0f}" if needed >= 1000.0 else "some thousand"
        return (
            f"Let {told} messages wait in it first, or measure with a probe that feeds itself "
            "(--probe, and no --worker)"
        )


class TuningRefused(TidegateError):
    """The measurements do not allow a design. The text says why and what to do."""

    name = "TUNING_REFUSED"

    def __init__(self, reason: str, record: ExperimentRecord | None = None) -> None:
        super().__init__(reason)
        # The samples measured until then, for inspection.
        self.record = record
