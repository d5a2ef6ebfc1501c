"""The adaptive layer: it learns the model while the loop runs, and redesigns the controller.

It reviews the model every few samples, and redesigns if all of these conditions hold:
1. The learned model is a plant: |a| < 1, and b exceeds 0 by 3 standard errors.
2. The model in use explains the remembered samples worse, beyond noise (F test).
3. On samples not yet learned from, the learned model left less than 80 % of the squared error.
4. A controller for it keeps the same requirement (`find_design`).

The new gains hold from the next step on. The output does not jump, because controllers compute only
changes.
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
    """The outermost layer. It learns from what was set, including manual values."""

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
        # Rate and output of the last step. `None` means that the step is not usable.
        self._last: tuple[float, float] | None = None
        # False while the measurements do not describe the plant, such as beyond the knee.
        self.is_learning = True
        # True while gains are reduced because the loop oscillated with the model in use.
        self.is_doubted = False

    def step(self, sample: Sample) -> ControlStep:
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
        if any(note.startswith(SWINGS) for note in step.notes):
            # With larger gains the loop moved further, perhaps beyond the linear range.
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
        """Forget the samples, because they do not describe the plant in its linear range."""
        self._last = None
        self.learner.forget()

    def use(self, model: Model) -> str:
        """Use this model from now on, and return its gains as text.

        Raises `DesignRefused` if no controller keeps the requirement on it.
        """
        placed = find(model, self._tunable.gains.kind, self._requirement)
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

    def _trusted(self, learned: Model) -> Model:
        """Return the learned model, or the one in use with the learned worth of a unit of prefetch.

        A loop that moves slowly determines b/(1−a) well and a badly, in particular if
        measurements come late. The learned a is used only if its gains are stable with the previous
        a too. It is always used if the loop has oscillated with the previous a.
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
