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
from dataclasses import dataclass, fields

from tidegate.core.term import Term

# Deviations below this fraction of a sum of squares are mostly rounding errors.
ROUNDING = 1e-11
# Fraction of the variances of prefetch and rate that must not be common to both.
COLLINEAR = 1e-9


class NoExcitation(ValueError):
    """The input or the output did not change, so the parameters cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Sums:
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
    def of(y: Term, u: Term, y_next: Term) -> Sums:
        """Return the sums of one sample, or one per element for numpy or Spark to add up."""
        return Sums(
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

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f) + getattr(other, f) for f in FIELDS))

    def y_next_spread(self) -> Term:
        """Return Σ(y(k+1) − its mean)²; a level or an R² needs no other deviation."""
        return self.y_next2 - self.y_next * self.y_next / self.n

    def deviations(self) -> Sums:
        """Return the sums of the same samples with the means subtracted."""
        n = self.n
        return Sums(
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


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Sums))


@dataclass(frozen=True)
class Model:
    """y(k+1) = a·y(k) + b·u(k) + offset; the offset results from the operating point."""

    a: Term
    b: Term
    offset_per_s: Term


def gains(sums: Sums) -> tuple[Term, Term]:
    """Return a and b by the formula.

    They are infinite or NaN without excitation, which `fit_model` refuses.
    """
    determinant = sums.s1 * sums.s3 - sums.s2 * sums.s2
    a = (sums.s3 * sums.s4 - sums.s2 * sums.s5) / determinant
    b = (sums.s1 * sums.s5 - sums.s2 * sums.s4) / determinant
    return a, b


def model(sums: Sums) -> Model:
    """Return the model fitted on deviations from the operating point, with its offset."""
    a, b = gains(sums.deviations())
    return Model(a=a, b=b, offset_per_s=(sums.y_next - a * sums.y - b * sums.u) / sums.n)


def squared_error(fitted: Model, sums: Sums) -> Term:
    """Return Σ(y(k+1) − prediction)² over any samples, from their sums alone."""
    a, b = fitted.a, fitted.b
    # Subtract the means first, so that large rates do not lose small errors to rounding.
    d = sums.deviations()
    spread = d.y_next2 + a * a * d.s1 + b * b * d.s3 + 2.0 * a * b * d.s2
    spread = spread - 2.0 * (a * d.s4 + b * d.s5)
    residual = sums.y_next - a * sums.y - b * sums.u - fitted.offset_per_s * sums.n
    return spread + residual * residual / sums.n


def standard_errors(fitted: Model, sums: Sums) -> tuple[float, float]:
    """Return the standard errors of a and b, from the residuals of the fitted samples."""
    d = sums.deviations()
    variance = max(squared_error(fitted, sums), 0.0) / max(sums.n - 3.0, 1.0)
    determinant = d.s1 * d.s3 - d.s2 * d.s2
    return math.sqrt(variance * d.s3 / determinant), math.sqrt(variance * d.s1 / determinant)


def r_squared(fitted: Model, sums: Sums) -> Term:
    """Return the part of the variance of any samples that the model explains.

    It is below 0 if the model is worse than the mean.
    """
    return 1.0 - squared_error(fitted, sums) / sums.y_next_spread()


def solve(sums: Sums) -> Model:
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
    return model(sums)
