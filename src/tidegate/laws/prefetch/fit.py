"""Recursive least squares with forgetting: a consumer's model that is updated while the loop runs.

    S(k) = λ·S(k−1) + S(sample)      λ = 1 − 1/memory, S the sums of the least-squares fit

This is the information form: the weighted sums are the state, and the formulas for a and b are
those of the batch fit. A test compares it with the covariance form of the textbooks. The sums are
of deviations from the first operating point, so that large rates do not lose small movements.

**Excitation.** A constant prefetch gives no information. If forgetting continued meanwhile, the
model would soon consist of noise. So the model is frozen (nothing is learned and nothing forgotten)
while the last prefetches differ by less than `moved_min`. It thaws when the loop or a dither moves
the prefetch.

**A changed plant.** A plant that has changed must not be averaged with its past: one line through
the samples of both has the slope of neither, and even its sign may be wrong. So when the last
predictions miss by far more than the earlier ones, everything is forgotten and learning restarts.

**Comparison.** Each new sample judges the learned model and the model in use before it is learned
from. Each model is given the offset that suits it best, so that a disturbance that only shifts the
rate does not count as drift.
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
# The last prefetches must differ by this many units.
MOVED_MIN = 0.25
# The rate may still follow a movement for this many samples.
MOVED_WITHIN = 8
# Fewer samples determine nothing.
SAMPLES_MIN = 30.0
# Standard errors that count as a difference, as in the offline identification.
SIGNIFICANT = 3.0
# Standard errors of a, and of b relative to b, that leave no doubt.
PRECISE = 0.1
# Fraction of the squared error of the model in use that a better model may have.
BETTER = 0.8
# Number of predictions in a row, and the ratio of their mean square to that of the earlier ones.
# Normal noise reached a factor of 5 in none of 30,000 samples, and a factor of 4 in one.
LAST_MISSES = 10
MISSED_BY = 5.0

NOTHING = Sums(*(0.0 for _ in FIELDS))


@dataclass(frozen=True)
class Drift:
    """Whether to replace the model in use, and the reason."""

    model: Model | None
    is_better: bool
    reason: str
    # Whether the learned model agrees with the model in use, and is precise.
    is_confirmed: bool = False


class RecursiveLeastSquares:
    """Learns a and b from a sequence of samples."""

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
        # Squared prediction errors of both models, with the same forgetting, and the number of
        # samples.
        self._error_of_new = self._error_of_old = self._judged = 0.0
        # Squared errors of the last predictions, the newest last. Older ones are in the sum above.
        self._misses: deque[float] = deque(maxlen=LAST_MISSES)
        self.is_frozen = False
        # How often everything was forgotten.
        self.forgotten = 0

    @property
    def samples(self) -> float:
        """The weighted number of remembered samples."""
        return float(self._sums.n)

    @property
    def model(self) -> Model:
        """The learned model. Raises `NoExcitation` while the samples do not determine a and b."""
        learned = solve(self._sums)
        if self._origin is None:
            return learned
        rate, prefetch = self._origin
        offset = learned.offset_per_s + (1.0 - learned.a) * rate - learned.b * prefetch
        return Model(float(learned.a), float(learned.b), float(offset))

    def observe(self, rate_per_s: float, prefetch: float, next_per_s: float) -> bool:
        """Add y(k), u(k) and y(k+1), and return whether they were learned from."""
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
        """Return whether the learned model differs from the model in use and predicts better."""
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
        """Compare with this model from now on."""
        self._in_use = model
        self._judge_anew()

    def forget(self) -> None:
        """Forget all samples, because they describe another plant, and restart learning."""
        self._sums = NOTHING
        self._origin = None
        self._judge_anew()
        self.forgotten += 1

    def _judge_anew(self) -> None:
        self._error_of_new = self._error_of_old = self._judged = 0.0
        self._misses.clear()

    def _forget_another_plant(self, rate_per_s: float, prefetch: float) -> None:
        """Restart here if the last predictions missed by far more than the earlier ones."""
        before = self._judged - len(self._misses)
        if len(self._misses) < LAST_MISSES or before < 2 * LAST_MISSES:
            return
        last = math.fsum(self._misses)
        # Forgetting reduces the last few only a little, and raises the limit a little.
        usual = max(self._error_of_new - last, 0.0) / before
        if last / LAST_MISSES > MISSED_BY * usual:
            self.forget()
            self._origin = (rate_per_s, prefetch)

    def _judge(self, y: float, u: float, y_next: float) -> None:
        """Compare the predictions of both models for a sample that neither has learned from."""
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
        """Return the model in use with the offset that fits the remembered samples."""
        a, b, sums = self._in_use.a, self._in_use.b, self._sums
        return Model(a, b, (sums.y_next - a * sums.y - b * sums.u) / sums.n)


def _squared(model: Model, y: float, u: float, y_next: float) -> float:
    error = y_next - model.a * y - model.b * u - model.offset_per_s
    return float(error * error)
