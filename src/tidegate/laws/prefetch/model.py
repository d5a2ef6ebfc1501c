"""The first guess of a consumer's model, before any identification: Little's law.

    in flight = rate · round trip,   so worth = rate / (prefetch − held)        a = 0

Messages that wait in the consumer (`held`) are not in flight. If their number is unknown, a
consumer beyond its knee seems to gain less from a unit than it does, and gains would be too large.
So the largest of several guesses counts, and the gains are designed for half as much again, which
is slow and stable. The module uses the standard library only, because it runs in nodes and workers.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import msgspec

from tidegate.core.prefetch import ConsumerSample, PrefetchModel
from tidegate.laws.prefetch.controller import (
    Controller,
    ControlSample,
    ControlStep,
    Layer,
    TunableGains,
    WorkloadSchedule,
)
from tidegate.laws.prefetch.design import (
    DesignRefused,
    Requirement,
    find_design,
    resample_model,
    stretch_model,
    tolerates_lateness,
)
from tidegate.laws.prefetch.fit import LinearModel, RecursiveLeastSquares
from tidegate.laws.prefetch.knee import OSCILLATES

# Fewer samples may be an accident.
INITIAL_SAMPLES_MIN = 3
SAMPLES_LOOKED_AT = 5
# Safety factor by which the design assumes a larger response than the guess.
DETUNED = 1.5
# Factor by which another guess must be larger to justify a redesign.
LARGER = 1.1


class InitialModel:
    """Guesses the model from samples until a better one is known."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SAMPLES_LOOKED_AT)
        # msg/s per unit of prefetch. NaN means not known yet.
        self.worth_per_s = math.nan

    def observe(self, sample: ConsumerSample, prefetch: float) -> bool:
        """Add a sample measured with this prefetch, and return whether the guess changed."""
        rate = sample.arrived_per_s
        in_flight = prefetch - (sample.held or 0.0)
        if sample.starved or not (0.0 < rate < math.inf and math.isfinite(in_flight)):
            return False
        self._recent.append(rate / max(in_flight, 1.0))
        if len(self._recent) < INITIAL_SAMPLES_MIN:
            return False
        guess = median(self._recent)
        if guess <= LARGER * self.worth_per_s:
            return False
        self.worth_per_s = guess
        return True

    @property
    def model(self) -> LinearModel:
        """The model to design for: a plant with a stronger response than the guess."""
        return LinearModel(0.0, DETUNED * self.worth_per_s, 0.0)


# -- model_in_use --
# The model that a loop runs with: given, chosen among several workloads, learned, or guessed.
#
#     y(k+1) = a·y(k) + b·u(k) + offset
#
# A given model is used until a better one has been learned from the consumer itself. Without a
# given model, Little's law provides a first guess. All models are converted to samples of one
# length. The module uses the standard library only.


class ActiveModel:
    """The model of one consumer, and where it comes from."""

    def __init__(
        self,
        given: PrefetchModel | None,
        sample_s: float,
        schedule: WorkloadSchedule | None = None,
    ) -> None:
        """Start with the given model, or else with the first choice of `schedule`.

        `schedule` has the models of several workloads.
        """
        if given is None and schedule is not None:
            given = schedule.model
        if given is not None:
            given.check()
        self.schedule = schedule
        self.given = given
        self.guess: InitialModel | None = InitialModel() if given is None else None
        # `None` means that nothing is known yet; the prefetch is held.
        self.model: LinearModel | None = None if given is None else resample_model(given, sample_s)

    # Reading the model

    @property
    def is_guessed(self) -> bool:
        return self.guess is not None

    @property
    def worth_per_s(self) -> float:
        """The steady-state rate per unit of prefetch; a guess counts without its safety factor."""
        if self.guess is not None:
            return self.guess.worth_per_s
        assert self.model is not None
        return float(self.model.b / (1.0 - self.model.a))

    def expected_per_s(self, rate_before_per_s: float, prefetch: float) -> float | None:
        """Return the predicted rate after the last measured rate and prefetch, or `None`."""
        model = self.model
        if model is None or math.isnan(rate_before_per_s):
            return None
        return float(model.a * rate_before_per_s + model.b * prefetch + model.offset_per_s)

    def prefetch_for(self, rate_per_s: float) -> float:
        """Return the prefetch that gives this rate in steady state, or NaN without a model."""
        model = self.model
        if model is None:
            return math.nan
        return float(((1.0 - model.a) * rate_per_s - model.offset_per_s) / model.b)

    def described(self, sample_s: float) -> PrefetchModel | None:
        """Return the model in the form that is stored, or `None` before the first guess."""
        if self.model is None:
            return None
        return msgspec.structs.replace(
            self.given or PrefetchModel(a=0.0, b=1.0),
            a=float(self.model.a),
            b=float(self.model.b),
            offset_per_s=float(self.model.offset_per_s),
            sample_s=sample_s,
        )

    # Changing the model

    def use_learned(self, given: PrefetchModel, sample_s: float) -> None:
        """Use this given model instead of the current one."""
        given.check()
        self.given, self.guess = given, None
        self.model = resample_model(given, sample_s)

    def learn(self, model: LinearModel) -> None:
        """Use a model that was learned from this consumer while it ran."""
        self.model, self.guess = model, None

    def observe(self, sample: ConsumerSample, prefetch: float) -> bool:
        """Update the guess unless a better model is known, and return whether it changed."""
        if self.guess is None or not self.guess.observe(sample, prefetch):
            return False
        self.model = self.guess.model
        return True

    def stretch(self, times: float) -> None:
        """Convert the model to samples that are `times` as long."""
        if self.model is not None:
            self.model = stretch_model(self.model, times)

    def disbelieve(self, sample_before_s: float, sample_s: float) -> None:
        """Withdraw the given model; a model that was learned while the loop ran stays."""
        given, self.given = self.given, None
        assert given is not None
        if self.schedule is not None:
            self.given = self.schedule.model
            self.model = resample_model(self.given, sample_s)
        elif self.model is None or self.model == resample_model(given, sample_before_s):
            self.model, self.guess = None, InitialModel()
        else:
            self.stretch(sample_s / sample_before_s)


# -- adaptation --
# The adaptive layer: it learns the model while the loop runs, and redesigns the controller.
#
# It reviews the model every few samples, and redesigns if all of these conditions hold:
# 1. The learned model is a plant: |a| < 1, and b exceeds 0 by 3 standard errors.
# 2. The model in use explains the remembered samples worse, beyond noise (F test).
# 3. On samples not yet learned from, the learned model left less than 80 % of the squared error.
# 4. A controller for it keeps the same requirement (`find_design`).
#
# The new gains hold from the next step on. The output does not jump, because controllers compute
# only changes.


REVIEW_SAMPLES = 10


class AdaptiveLayer(Layer):
    """The outermost layer. It learns from what was set, including manual values."""

    def __init__(
        self,
        inner: Controller,
        tunable: TunableGains,
        model: LinearModel,
        requirement: Requirement,
        *,
        learner: RecursiveLeastSquares | None = None,
        review_samples: int = REVIEW_SAMPLES,
    ) -> None:
        super().__init__(inner)
        self._tunable = tunable
        self._requirement = requirement
        self.model = model
        self.learner = learner or RecursiveLeastSquares(model)
        self._review_samples = review_samples
        self._until_review = review_samples
        # Rate and output of the last step. `None` means that the step is not usable.
        self._last: tuple[float, float] | None = None
        # False while the measurements do not describe the plant, such as beyond the knee.
        self.is_learning = True
        # True while gains are reduced because the loop oscillated with the model in use.
        self.is_doubted = False

    def step(self, sample: ControlSample) -> ControlStep:
        step = self._inner.step(sample)
        rate = step.measured_per_s
        # A starved rate is not due to the prefetch.
        is_telling = sample.is_usable and not sample.starved and "outlier" not in step.notes
        if math.isfinite(rate) and is_telling and self.is_learning:
            if self._last is not None:
                self.learner.observe(*self._last, rate)
            self._last = (rate, step.output)
        else:
            self._last = None
        if any(note.startswith(OSCILLATES) for note in step.notes):
            # With larger gains the loop moved further, perhaps beyond the linear range.
            self.reset()
        self._until_review -= 1
        if self._until_review > 0:
            return step
        self._until_review = self._review_samples
        note = self._review()
        return step if note is None else step.noted(note)

    def restart(self, output: float) -> None:
        self._last = None
        super().restart(output)

    def reset(self) -> None:
        """Forget the samples, because they do not describe the plant in its linear range."""
        self._last = None
        self.learner.reset()

    def use(self, model: LinearModel) -> str:
        """Use this model from now on, and return its gains as text.

        Raises `DesignRefused` if no controller keeps the requirement on it.
        """
        placed = find_design(model, self._tunable.gains.kind, self._requirement)
        if placed is None:
            raise DesignRefused(f"nothing keeps {self._requirement} on {model}")
        self.model = model
        self.learner.adopt(model)
        self._tunable.retune(placed.gains)
        return str(placed.gains)

    def _review(self) -> str | None:
        """Return what was changed, or why a better model could not be used, or `None`."""
        drift = self.learner.drift()
        if self.is_doubted and drift.is_confirmed:
            return self._believe(drift.reason)
        if not drift.is_better or drift.model is None:
            return None
        try:
            gains = self.use(self._trusted(drift.model))
        except DesignRefused as refused:
            return f"drifted, but not redesigned: {refused}"
        return f"redesigned: {drift.reason}; now {gains}"

    def _believe(self, reason: str) -> str | None:
        """Return to the designed gains after the model in use was confirmed."""
        before = self._tunable.gains
        gains = self.use(self.model)
        return None if self._tunable.gains == before else f"redesigned: {reason}; again {gains}"

    def _trusted(self, learned: LinearModel) -> LinearModel:
        """Return the learned model, or the one in use with the learned worth of a unit of prefetch.

        A loop that moves slowly determines b/(1−a) well and a badly, in particular if
        measurements come late. The learned a is used only if its gains are stable with the previous
        a too. It is always used if the loop has oscillated with the previous a.
        """
        if self.is_doubted:
            return learned
        before = float(self.model.a)
        worth_per_s = learned.b / (1.0 - learned.a)
        kept = LinearModel(before, (1.0 - before) * worth_per_s, 0.0)
        placed = find_design(learned, self._tunable.gains.kind, self._requirement)
        bears = placed is not None and tolerates_lateness(
            before, float(kept.b), placed.gains, self._requirement
        )
        return learned if bears else kept
