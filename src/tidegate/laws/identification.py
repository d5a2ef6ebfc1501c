"""A model of a consumer from its samples: how prefetch drives its arrival rate.

    y(k+1) = a·y(k) + b·u(k)                  y arrival rate (msg/s), u prefetch

    S1 = Σy²(k)   S2 = Σu(k)y(k)   S3 = Σu²(k)   S4 = Σy(k)y(k+1)   S5 = Σu(k)y(k+1)
    a = (S3·S4 − S2·S5) / (S1·S3 − S2²)       b = (S1·S5 − S2·S4) / (S1·S3 − S2²)

(The paper prints S5 with u(k+1) for y(k+1).) The model has no intercept, so it is fitted on
deviations from the operating point, that is, with the means taken out; `Σxy − Σx·Σy/n` does that
from the sums alone. So does the error on samples that the model has never seen: with deviations

    SSE = Σy⁺² + a²·S1 + b²·S3 − 2a·S4 − 2b·S5 + 2ab·S2 + n·(mean residual)²

Everything is a sum, sums add up, and thousands of consumers are identified in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tidegate.laws.linear_range import LinearRange
from tidegate.laws.term import Term

# Held-out data must be explained at least so well.
R2_ACCEPTED = 0.8


class NoExcitation(ValueError):
    """The input or the output stood still, so nothing can be told apart."""


@dataclass(frozen=True)
class Sums:
    """What remains of samples y(k), u(k), y(k+1): sums, which add up over parts."""

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
        """One sample, or one of each element: to be summed by numpy or Spark, field by field."""
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

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f) + getattr(other, f) for f in FIELDS))

    def deviations(self) -> Sums:
        """The sums of the same samples with the means taken out."""
        n = self.n
        return Sums(
            n=n,
            y=self.y - self.y,
            u=self.u - self.u,
            y_next=self.y_next - self.y_next,
            y_next2=self.y_next2 - self.y_next * self.y_next / n,
            s1=self.s1 - self.y * self.y / n,
            s2=self.s2 - self.u * self.y / n,
            s3=self.s3 - self.u * self.u / n,
            s4=self.s4 - self.y * self.y_next / n,
            s5=self.s5 - self.u * self.y_next / n,
        )


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Sums))


@dataclass(frozen=True)
class Model:
    """y(k+1) = a·y(k) + b·u(k) + offset; the offset is what the operating point amounts to."""

    a: Term
    b: Term
    offset_per_s: Term


@dataclass(frozen=True)
class Identified:
    """A fitted model, how good it is, and whether it may be used."""

    accepted: bool
    reason: str
    linear_range: LinearRange
    # NaN where nothing could be fitted or judged.
    a: float
    b: float
    offset_per_s: float
    r2_train: float
    r2_test: float
    rmse_train_per_s: float
    rmse_test_per_s: float
    n_train: int
    n_test: int


def identify(
    train: Mapping[float, Sums],
    test: Mapping[float, Sums],
    r2_accepted: float = R2_ACCEPTED,
) -> Identified:
    """The model of one consumer group from its sums by prefetch u(k); never raises on poor data."""
    raise NotImplementedError
