"""A controller that follows its plant: learns while it steers, and is redesigned when that helps.

Redesigned when all of it holds, looked at every few samples:
1. the learned model is a plant: |a| < 1, and b exceeds 0 by 3 standard errors;
2. the model in use explains what is remembered worse, beyond noise (F test);
3. on samples not yet learned from, the learned one left less than 80 % of its squared error;
4. a controller for it keeps the same requirement (controller_design).
The new gains hold from the next step on, without a bump, since controllers compute changes only.
"""

from __future__ import annotations

import math

from tidegate.laws.control_step import Controller, ControlStep, Layer, Sample
from tidegate.laws.controller_design import DesignRefused, Requirement, bears_lateness, find
from tidegate.laws.controllers import Tuned
from tidegate.laws.least_squares import Model
from tidegate.laws.recursive_least_squares import RecursiveLeastSquares
from tidegate.laws.swing import SWINGS

REVIEW_SAMPLES = 10


class Adaptive(Layer):
    """The outermost layer: it learns from what was set, whoever set it."""

    def __init__(
        self,
        inner: Controller,
        tunable: Tuned,
        model: Model,
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
        # What the last step saw and set; None: it saw nothing.
        self._last: tuple[float, float] | None = None
        # False: what is measured now says nothing of the plant.
        self.is_learning = True
        # True: with the model in use the loop has swung.
        self.is_doubted = False

    def step(self, sample: Sample) -> ControlStep:
        step = self._inner.step(sample)
        rate = step.measured_per_s
        # A starved rate is not the prefetch's doing.
        is_telling = sample.is_usable and not sample.starved and "outlier" not in step.notes
        if math.isfinite(rate) and is_telling and self.is_learning:
            if self._last is not None:
                self.learner.observe(*self._last, rate)
            self._last = (rate, step.output)
        else:
            self._last = None
        if any(note.startswith(SWINGS) for note in step.notes):
            # With larger gains it went further, and perhaps beyond where a line holds.
            self.forget()
        self._until_review -= 1
        if self._until_review > 0:
            return step
        self._until_review = self._review_samples
        note = self._review()
        return step if note is None else step.noted(note)

    def restart(self, output: float) -> None:
        self._last = None
        super().restart(output)

    def forget(self) -> None:
        """What was learned since the last design says nothing of the plant."""
        self._last = None
        self.learner.forget()

    def use(self, model: Model) -> str:
        """Run with this model from now on; says with which gains."""
        placed = find(model, self._tunable.gains.kind, self._requirement)
        if placed is None:
            raise DesignRefused(f"nothing keeps {self._requirement} on {model}")
        self.model = model
        self.learner.adopt(model)
        self._tunable.retune(placed.gains)
        return str(placed.gains)

    def _review(self) -> str | None:
        """What was changed, or why a better model could not be used; None: all is well."""
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
        """The model in use holds after all: what it was designed for may be tried again."""
        before = self._tunable.gains
        gains = self.use(self.model)
        return None if self._tunable.gains == before else f"redesigned: {reason}; again {gains}"

    def _trusted(self, learned: Model) -> Model:
        """The learned model, or of it only what a unit of prefetch is worth.

        A loop that moves slowly tells b/(1−a) well and a badly, the more so if measurements come
        late. Gains that would not be stable if a were what it was before are not worth the risk,
        unless it was just that a with which the loop has swung.
        """
        if self.is_doubted:
            return learned
        before = float(self.model.a)
        worth_per_s = learned.b / (1.0 - learned.a)
        kept = Model(before, (1.0 - before) * worth_per_s, 0.0)
        placed = find(learned, self._tunable.gains.kind, self._requirement)
        bears = placed is not None and bears_lateness(
            before, float(kept.b), placed.gains, self._requirement
        )
        return learned if bears else kept
