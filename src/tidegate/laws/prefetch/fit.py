"""Least-squares fit of a consumer's model from sums: how the arrival rate follows the prefetch.

    y(k+1) = a·y(k) + b·u(k)                  y arrival rate (msg/s), u prefetch

    S1 = Σy²(k)   S2 = Σu(k)y(k)   S3 = Σu²(k)   S4 = Σy(k)y(k+1)   S5 = Σu(k)y(k+1)
    a = (S3·S4 − S2·S5) / (S1·S3 − S2²)       b = (S1·S5 − S2·S4) / (S1·S3 − S2²)

The paper prints S5 with u(k+1) instead of y(k+1). The model has no intercept, so it is fitted on
deviations from the operating point, that is, with the means subtracted. `Σxy − Σx·Σy/n` does that
from the sums alone. The error on samples that were not used for the fit needs only sums as well;
with deviations

    SSE = Σy⁺² + a²·S1 + b²·S3 − 2a·S4 − 2b·S5 + 2ab·S2 + n·(mean residual)²

Sums of parts add up, so Spark identifies thousands of consumers in one pass.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields

from tidegate.core.text import Term

# Deviations below this fraction of a sum of squares are mostly rounding errors.
ROUNDING = 1e-11
# Fraction of the variances of prefetch and rate that must not be common to both.
COLLINEAR = 1e-9


class NoExcitation(ValueError):
    """The input or the output did not change, so the parameters cannot be told apart."""


@dataclass(frozen=True, slots=True)
class RegressionSums:
    """Sums over samples y(k), u(k), y(k+1). Sums of parts add up."""

    n: Term
    y: Term
    u: Term
    y_next: Term
    y_next2: Term
    s1: Term
    s2: Term
    s3: Term
    s4: Term
    s5: Term

    @staticmethod
    def of(y: Term, u: Term, y_next: Term) -> RegressionSums:
        """Return the sums of one sample, or one per element for numpy or Spark to add up."""
        return RegressionSums(
            n=y * 0 + 1,
            y=y,
            u=u,
            y_next=y_next,
            y_next2=y_next * y_next,
            s1=y * y,
            s2=u * y,
            s3=u * u,
            s4=y * y_next,
            s5=u * y_next,
        )

    def is_finite(self) -> bool:
        """Return whether all sums are finite; one NaN or infinite sum makes the total so."""
        first = self.n + self.y + self.u + self.y_next + self.y_next2
        return math.isfinite(first + self.s1 + self.s2 + self.s3 + self.s4 + self.s5)

    def __add__(self, other: RegressionSums) -> RegressionSums:
        return RegressionSums(*(getattr(self, f) + getattr(other, f) for f in FIELDS))

    def y_next_spread(self) -> Term:
        """Return Σ(y(k+1) − its mean)²; a level or an R² needs no other deviation."""
        return self.y_next2 - self.y_next * self.y_next / self.n

    def deviations(self) -> RegressionSums:
        """Return the sums of the same samples with the means subtracted."""
        n = self.n
        return RegressionSums(
            n=n,
            y=self.y - self.y,
            u=self.u - self.u,
            y_next=self.y_next - self.y_next,
            y_next2=self.y_next_spread(),
            s1=self.s1 - self.y * self.y / n,
            s2=self.s2 - self.u * self.y / n,
            s3=self.s3 - self.u * self.u / n,
            s4=self.s4 - self.y * self.y_next / n,
            s5=self.s5 - self.u * self.y_next / n,
        )


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(RegressionSums))


@dataclass(frozen=True)
class LinearModel:
    """y(k+1) = a·y(k) + b·u(k) + offset; the offset results from the operating point."""

    a: Term
    b: Term
    offset_per_s: Term


def fit_coefficients(sums: RegressionSums) -> tuple[Term, Term]:
    """Return a and b by the formula.

    They are infinite or NaN without excitation, which `fit_model` refuses.
    """
    determinant = sums.s1 * sums.s3 - sums.s2 * sums.s2
    a = (sums.s3 * sums.s4 - sums.s2 * sums.s5) / determinant
    b = (sums.s1 * sums.s5 - sums.s2 * sums.s4) / determinant
    return a, b


def linear_model(sums: RegressionSums) -> LinearModel:
    """Return the model fitted on deviations from the operating point, with its offset."""
    a, b = fit_coefficients(sums.deviations())
    return LinearModel(a=a, b=b, offset_per_s=(sums.y_next - a * sums.y - b * sums.u) / sums.n)


def squared_error(fitted: LinearModel, sums: RegressionSums) -> Term:
    """Return Σ(y(k+1) − prediction)² over any samples, from their sums alone."""
    a, b = fitted.a, fitted.b
    # Subtract the means first, so that large rates do not lose small errors to rounding.
    d = sums.deviations()
    spread = d.y_next2 + a * a * d.s1 + b * b * d.s3 + 2.0 * a * b * d.s2
    spread = spread - 2.0 * (a * d.s4 + b * d.s5)
    residual = sums.y_next - a * sums.y - b * sums.u - fitted.offset_per_s * sums.n
    return spread + residual * residual / sums.n


def standard_errors(fitted: LinearModel, sums: RegressionSums) -> tuple[float, float]:
    """Return the standard errors of a and b, from the residuals of the fitted samples."""
    d = sums.deviations()
    variance = max(squared_error(fitted, sums), 0.0) / max(sums.n - 3.0, 1.0)
    determinant = d.s1 * d.s3 - d.s2 * d.s2
    return math.sqrt(variance * d.s3 / determinant), math.sqrt(variance * d.s1 / determinant)


def r_squared(fitted: LinearModel, sums: RegressionSums) -> Term:
    """Return the part of the variance of any samples that the model explains.

    It is below 0 if the model is worse than the mean.
    """
    return 1.0 - squared_error(fitted, sums) / sums.y_next_spread()


def fit_model(sums: RegressionSums) -> LinearModel:
    """Return the model of one consumer from its sums.

    Raises `NoExcitation` if the samples do not determine a and b.
    """
    if not sums.is_finite():
        raise NoExcitation("the sums are not finite: a sample was not a number")
    if sums.n < 3:
        raise NoExcitation(f"{sums.n:g} samples do not tell two unknowns and a level apart")
    d = sums.deviations()
    if d.s3 <= ROUNDING * sums.s3:
        raise NoExcitation("the prefetch never changed: vary it, and its effect will show")
    if d.s1 <= ROUNDING * sums.s1:
        raise NoExcitation("the arrival rate never changed")
    if d.s1 * d.s3 - d.s2 * d.s2 <= COLLINEAR * d.s1 * d.s3:
        raise NoExcitation(
            "prefetch and arrival rate moved together in one line: change the prefetch faster than "
            "the rate can follow, and their effects come apart"
        )
    return linear_model(sums)


# -- recursive_least_squares --
# Recursive least squares with forgetting: a consumer's model that is updated while the loop runs.
#
#     S(k) = λ·S(k−1) + S(sample)      λ = 1 − 1/memory, S the sums of the least-squares fit
#
# This is the information form: the weighted sums are the state, and the formulas for a and b are
# those of the batch fit. A test compares it with the covariance form of the textbooks. The sums are
# of deviations from the first operating point, so that large rates do not lose small movements.
#
# **Excitation.** A constant prefetch gives no information. If forgetting continued meanwhile, the
# model would soon consist of noise. So the model is frozen (nothing is learned and nothing
# forgotten)
# while the last prefetches differ by less than `moved_min`. It thaws when the loop or a dither
# moves
# the prefetch.
#
# **A changed plant.** A plant that has changed must not be averaged with its past: one line through
# the samples of both has the slope of neither, and even its sign may be wrong. So when the last
# predictions miss by far more than the earlier ones, everything is forgotten and learning restarts.
#
# **Comparison.** Each new sample judges the learned model and the model in use before it is learned
# from. Each model is given the offset that suits it best, so that a disturbance that only shifts
# the
# rate does not count as drift.


MEMORY_SAMPLES = 100.0
# The last prefetches must differ by this many units.
MOVED_MIN = 0.25
# The rate may still follow a movement for this many samples.
MOVED_WITHIN = 8
# Fewer samples determine nothing.
RLS_SAMPLES_MIN = 30.0
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

NO_SUMS = RegressionSums(*(0.0 for _ in FIELDS))


@dataclass(frozen=True)
class ModelDrift:
    """Whether to replace the model in use, and the reason."""

    model: LinearModel | None
    is_better: bool
    reason: str
    # Whether the learned model agrees with the model in use, and is precise.
    is_confirmed: bool = False


class RecursiveLeastSquares:
    """Learns a and b from a sequence of samples."""

    def __init__(
        self,
        in_use: LinearModel,
        *,
        memory_samples: float = MEMORY_SAMPLES,
        moved_min: float = MOVED_MIN,
    ) -> None:
        if not memory_samples > RLS_SAMPLES_MIN:
            raise ValueError(
                f"a memory of {memory_samples:g} samples: more than {RLS_SAMPLES_MIN:g} are "
                f"needed to "
                "tell a model from noise"
            )
        self._keep = 1.0 - 1.0 / memory_samples
        self._moved_min = moved_min
        self._in_use = in_use
        self._sums = NO_SUMS
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
    def model(self) -> LinearModel:
        """The learned model. Raises `NoExcitation` while the samples do not determine a and b."""
        learned = fit_model(self._sums)
        if self._origin is None:
            return learned
        rate, prefetch = self._origin
        offset = learned.offset_per_s + (1.0 - learned.a) * rate - learned.b * prefetch
        return LinearModel(float(learned.a), float(learned.b), float(offset))

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
        self._sums = RegressionSums(*kept) + RegressionSums.of(y, u, y_next)
        return True

    def drift(self) -> ModelDrift:
        """Return whether the learned model differs from the model in use and predicts better."""
        if self._judged < RLS_SAMPLES_MIN / 2.0 or self.samples < RLS_SAMPLES_MIN:
            return ModelDrift(None, False, f"{self.samples:.0f} samples are too few to judge by")
        try:
            learned = self.model
            local = fit_model(self._sums)
        except NoExcitation as error:
            return ModelDrift(None, False, str(error))
        a_error, b_error = standard_errors(local, self._sums)
        if not abs(learned.a) < 1.0 or not learned.b > SIGNIFICANT * b_error:
            return ModelDrift(
                learned, False, f"a = {learned.a:.4g}, b = {learned.b:.4g} is no plant to steer"
            )
        left_over = max(squared_error(local, self._sums), 0.0)
        noise = left_over / max(self.samples - 3.0, 1.0)
        old = self._refitted()
        lost = squared_error(old, self._sums) - left_over
        # An F test with two unknowns, as for the knee.
        if not lost / 2.0 > SIGNIFICANT**2 * noise:
            return ModelDrift(
                learned, False,
                f"a = {learned.a:.4g} ± {a_error:.2g}, b = {learned.b:.4g} ± {b_error:.2g} cannot "
                "be told from the model in use",
                is_confirmed=max(a_error, b_error / learned.b) <= PRECISE,
            )  # fmt: skip
        if not self._error_of_new < BETTER * self._error_of_old:
            return ModelDrift(
                learned, False, "the learned model predicts no better than the one in use"
            )
        return ModelDrift(
            learned, True,
            f"a = {learned.a:.4g}, b = {learned.b:.4g} leaves "
            f"{self._error_of_new / self._error_of_old:.0%} of the squared error that "
            f"a = {self._in_use.a:.4g}, b = {self._in_use.b:.4g} makes",
        )  # fmt: skip

    def adopt(self, model: LinearModel) -> None:
        """Compare with this model from now on."""
        self._in_use = model
        self._judge_anew()

    def reset(self) -> None:
        """Forget all samples, because they describe another plant, and restart learning."""
        self._sums = NO_SUMS
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
            self.reset()
            self._origin = (rate_per_s, prefetch)

    def _judge(self, y: float, u: float, y_next: float) -> None:
        """Compare the predictions of both models for a sample that neither has learned from."""
        if self.samples < RLS_SAMPLES_MIN / 2.0:
            return
        try:
            new = fit_model(self._sums)
        except NoExcitation:
            return
        old = self._refitted()
        self._judged = self._keep * self._judged + 1.0
        missed = _squared(new, y, u, y_next)
        self._misses.append(missed)
        self._error_of_new = self._keep * self._error_of_new + missed
        self._error_of_old = self._keep * self._error_of_old + _squared(old, y, u, y_next)

    def _refitted(self) -> LinearModel:
        """Return the model in use with the offset that fits the remembered samples."""
        a, b, sums = self._in_use.a, self._in_use.b, self._sums
        return LinearModel(a, b, (sums.y_next - a * sums.y - b * sums.u) / sums.n)


def _squared(model: LinearModel, y: float, u: float, y_next: float) -> float:
    error = y_next - model.a * y - model.b * u - model.offset_per_s
    return float(error * error)
