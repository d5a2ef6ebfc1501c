"""A consumer's model kept up to date while it is steered: least squares that forgets.

    S(k) = λ·S(k−1) + S(sample)      λ = 1 − 1/memory, S the sums of least_squares

Recursive least squares with forgetting in its information form: the weighted sums are the state,
and the formulas for a and b are those of the batch (a test holds it against the textbook's
covariance form). Sums are of deviations from the operating point at which it began, so that large
rates do not drown small movements.

It needs excitation. A prefetch that stands still teaches nothing, yet forgetting goes on, and soon
the model is made of noise. So nothing is learned, and nothing forgotten, while the last prefetches
were all the same but for a fraction: the model is frozen until the prefetch moves, by the loop
itself or by dither (actuation).

A plant that has become another one must not be averaged with what it was: one line through the
samples of both has the slope of neither, and even its sign may be wrong. So when the last
predictions have missed by far more than those before, all is forgotten and learned anew from there.

Whether the new model is better than the one in use is judged on samples before they are learned
from, each model with the offset that suits it best: a disturbance that shifts the rate is no drift.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tidegate.laws.least_squares import (
    FIELDS,
    Model,
    NoExcitation,
    Sums,
    solve,
    squared_error,
    standard_errors,
)

MEMORY_SAMPLES = 100.0
# Of one prefetch, by which the last few must differ among each other.
MOVED_MIN = 0.25
# As long as this after a movement, the rate may still follow it.
MOVED_WITHIN = 8
# Fewer say nothing.
SAMPLES_MIN = 30.0
# Standard errors that count as different; as in identification.
SIGNIFICANT = 3.0
# Standard errors of a, and of b as a part of it, that leave no doubt.
PRECISE = 0.1
# Of the squared error of the model in use, what a better one may have.
BETTER = 0.8
# So many predictions in a row, and how many times their mean square may be that of those before:
# normal noise did that in none of 30 000 samples, and a factor of 4 in one.
LAST_MISSES = 10
MISSED_BY = 5.0

NOTHING = Sums(*(0.0 for _ in FIELDS))


@dataclass(frozen=True)
class Drift:
    """Whether to replace the model in use, and why or why not."""

    model: Model | None
    is_better: bool
    reason: str
    # Whether the model in use was found again, and that with precision.
    is_confirmed: bool = False


class RecursiveLeastSquares:
    """Learns a and b from one sample after another."""

    def __init__(
        self,
        in_use: Model,
        *,
        memory_samples: float = MEMORY_SAMPLES,
        moved_min: float = MOVED_MIN,
    ) -> None:
        if not memory_samples > SAMPLES_MIN:
            raise ValueError(
                f"a memory of {memory_samples:g} samples: more than {SAMPLES_MIN:g} are needed to "
                "tell a model from noise"
            )
        self._keep = 1.0 - 1.0 / memory_samples
        self._moved_min = moved_min
        self._in_use = in_use
        self._sums = NOTHING
        self._recent: deque[float] = deque(maxlen=MOVED_WITHIN)
        # The operating point: rate and prefetch of the first sample.
        self._origin: tuple[float, float] | None = None
        # Squared errors of what each model predicted, forgotten alike, and over how many samples.
        self._error_of_new = self._error_of_old = self._judged = 0.0
        # Squared errors of the last predictions, newest last; older ones are in the sum above.
        self._misses: deque[float] = deque(maxlen=LAST_MISSES)
        self.is_frozen = False
        # How often everything was forgotten.
        self.forgotten = 0

    @property
    def samples(self) -> float:
        """How many are remembered, the forgotten part of each left out."""
        return float(self._sums.n)

    @property
    def model(self) -> Model:
        """As learned; raises NoExcitation while the samples do not tell a and b apart."""
        learned = solve(self._sums)
        if self._origin is None:
            return learned
        rate, prefetch = self._origin
        offset = learned.offset_per_s + (1.0 - learned.a) * rate - learned.b * prefetch
        return Model(float(learned.a), float(learned.b), float(offset))

    def observe(self, rate_per_s: float, prefetch: float, next_per_s: float) -> bool:
        """y(k), u(k) and y(k+1); whether something was learned from them."""
        if not math.isfinite(rate_per_s + prefetch + next_per_s):
            return False
        if self._origin is None:
            self._origin = (rate_per_s, prefetch)
        self._forget_another_plant(rate_per_s, prefetch)
        rate_0, prefetch_0 = self._origin
        y, u, y_next = rate_per_s - rate_0, prefetch - prefetch_0, next_per_s - rate_0
        self._recent.append(prefetch)
        self.is_frozen = max(self._recent) - min(self._recent) < self._moved_min
        if self.is_frozen:
            return False
        self._judge(y, u, y_next)
        kept = (getattr(self._sums, name) * self._keep for name in FIELDS)
        self._sums = Sums(*kept) + Sums.of(y, u, y_next)
        return True

    def drift(self) -> Drift:
        """Whether the model in use has drifted away, and the learned one predicts better."""
        if self._judged < SAMPLES_MIN / 2.0 or self.samples < SAMPLES_MIN:
            return Drift(None, False, f"{self.samples:.0f} samples are too few to judge by")
        try:
            learned = self.model
            local = solve(self._sums)
        except NoExcitation as error:
            return Drift(None, False, str(error))
        a_error, b_error = standard_errors(local, self._sums)
        if not abs(learned.a) < 1.0 or not learned.b > SIGNIFICANT * b_error:
            return Drift(
                learned, False, f"a = {learned.a:.4g}, b = {learned.b:.4g} is no plant to steer"
            )
        left_over = max(squared_error(local, self._sums), 0.0)
        noise = left_over / max(self.samples - 3.0, 1.0)
        old = self._refitted()
        lost = squared_error(old, self._sums) - left_over
        # An F test with two unknowns, as for the knee.
        if not lost / 2.0 > SIGNIFICANT**2 * noise:
            return Drift(
                learned, False,
                f"a = {learned.a:.4g} ± {a_error:.2g}, b = {learned.b:.4g} ± {b_error:.2g} cannot "
                "be told from the model in use",
                is_confirmed=max(a_error, b_error / learned.b) <= PRECISE,
            )  # fmt: skip
        if not self._error_of_new < BETTER * self._error_of_old:
            return Drift(learned, False, "the learned model predicts no better than the one in use")
        return Drift(
            learned, True,
            f"a = {learned.a:.4g}, b = {learned.b:.4g} leaves "
            f"{self._error_of_new / self._error_of_old:.0%} of the squared error that "
            f"a = {self._in_use.a:.4g}, b = {self._in_use.b:.4g} makes",
        )  # fmt: skip

    def adopt(self, model: Model) -> None:
        """This one is in use from now on."""
        self._in_use = model
        self._judge_anew()

    def forget(self) -> None:
        """What was seen is that of another plant: learn anew from the next sample on."""
        self._sums = NOTHING
        self._origin = None
        self._judge_anew()
        self.forgotten += 1

    def _judge_anew(self) -> None:
        self._error_of_new = self._error_of_old = self._judged = 0.0
        self._misses.clear()

    def _forget_another_plant(self, rate_per_s: float, prefetch: float) -> None:
        """Begin again here, if the last predictions missed by far more than those before."""
        before = self._judged - len(self._misses)
        if len(self._misses) < LAST_MISSES or before < 2 * LAST_MISSES:
            return
        last = math.fsum(self._misses)
        # What is forgotten of the last few is little, and makes the bar a little higher.
        usual = max(self._error_of_new - last, 0.0) / before
        if last / LAST_MISSES > MISSED_BY * usual:
            self.forget()
            self._origin = (rate_per_s, prefetch)

    def _judge(self, y: float, u: float, y_next: float) -> None:
        """What both models say of a sample that neither has seen."""
        if self.samples < SAMPLES_MIN / 2.0:
            return
        try:
            new = solve(self._sums)
        except NoExcitation:
            return
        old = self._refitted()
        self._judged = self._keep * self._judged + 1.0
        missed = _squared(new, y, u, y_next)
        self._misses.append(missed)
        self._error_of_new = self._keep * self._error_of_new + missed
        self._error_of_old = self._keep * self._error_of_old + _squared(old, y, u, y_next)

    def _refitted(self) -> Model:
        """The model in use with the offset that suits what is remembered."""
        a, b, sums = self._in_use.a, self._in_use.b, self._sums
        return Model(a, b, (sums.y_next - a * sums.y - b * sums.u) / sums.n)


def _squared(model: Model, y: float, u: float, y_next: float) -> float:
    error = y_next - model.a * y - model.b * u - model.offset_per_s
    return float(error * error)
