"""The model that a loop runs with: given, chosen among several workloads, learned, or guessed.

    y(k+1) = a·y(k) + b·u(k) + offset

A given model is used until a better one has been learned from the consumer itself. Without a given
model, Little's law provides a first guess. All models are converted to samples of one length. The
module uses the standard library only.
"""

from __future__ import annotations

import math

import msgspec

from tidegate.core.prefetch import ConsumerSample, PrefetchModel
from tidegate.laws.first_guess import FirstGuess
from tidegate.laws.least_squares import Model
from tidegate.laws.prefetch_design import resampled, stretched
from tidegate.laws.workload_schedule import WorkloadSchedule


class ModelInUse:
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
        self.guess: FirstGuess | None = FirstGuess() if given is None else None
        # `None` means that nothing is known yet; the prefetch is held.
        self.model: Model | None = None if given is None else resampled(given, sample_s)

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

    def take(self, given: PrefetchModel, sample_s: float) -> None:
        """Use this given model instead of the current one."""
        given.check()
        self.given, self.guess = given, None
        self.model = resampled(given, sample_s)

    def learn(self, model: Model) -> None:
        """Use a model that was learned from this consumer while it ran."""
        self.model, self.guess = model, None

    def see(self, sample: ConsumerSample, prefetch: float) -> bool:
        """Update the guess unless a better model is known, and return whether it changed."""
        if self.guess is None or not self.guess.see(sample, prefetch):
            return False
        self.model = self.guess.model
        return True

    def stretch(self, times: float) -> None:
        """Convert the model to samples that are `times` as long."""
        if self.model is not None:
            self.model = stretched(self.model, times)

    def disbelieve(self, sample_before_s: float, sample_s: float) -> None:
        """Withdraw the given model; a model that was learned while the loop ran stays."""
        given, self.given = self.given, None
        assert given is not None
        if self.schedule is not None:
            self.given = self.schedule.model
            self.model = resampled(self.given, sample_s)
        elif self.model is None or self.model == resampled(given, sample_before_s):
            self.model, self.guess = None, FirstGuess()
        else:
            self.stretch(sample_s / sample_before_s)
