"""Consumer groups as the laws see them: sums by prefetch, and the model that follows from them.

Spark has added up millions of samples; what comes here is some dozens of rows per group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa

from tidegate.laws.identification import Identified, identify, level_of
from tidegate.laws.least_squares import FIELDS, Sums
from tidegate.laws.linear_range import Level
from tidegate.pipeline.local_table import finite, numbers
from tidegate.telemetry.knowledge import Model

# a and b are those of one sampling interval; samples of several are of several models.
INTERVAL_VARIATION_MAX = 0.25


@dataclass(frozen=True)
class ConsumerGroup:
    """One group: what was measured at each prefetch, and what the law made of it."""

    name: str
    rows: int
    levels: Sequence[Level]
    found: Identified
    interval_s: float
    first_at: datetime
    last_at: datetime

    def settled_per_s(self, prefetch: float) -> float:
        """Where the model's rate settles at a prefetch: y = a·y + b·u + offset."""
        found = self.found
        if not abs(found.a) < 1.0:
            return math.nan
        return (found.b * prefetch + found.offset_per_s) / (1.0 - found.a)

    def model(self) -> Model:
        found = self.found
        return Model(
            subject=self.name,
            accepted=found.accepted,
            reason=found.reason,
            parameters=finite(
                {
                    "a": found.a,
                    "b": found.b,
                    "offset_per_s": found.offset_per_s,
                    "prefetch_low": found.linear_range.low,
                    "prefetch_high": found.linear_range.high,
                    "interval_s": self.interval_s,
                }
            ),
            quality=finite(
                {
                    "r2_train": found.r2_train,
                    "r2_test": found.r2_test,
                    "rmse_train_per_s": found.rmse_train_per_s,
                    "rmse_test_per_s": found.rmse_test_per_s,
                    "rows_train": found.n_train,
                    "rows_test": found.n_test,
                }
            ),
            rows=self.rows,
            from_s=self.first_at.timestamp(),
            to_s=self.last_at.timestamp(),
        )


def consumer_groups(sums: pa.Table) -> list[ConsumerGroup]:
    """Every group with its model, by name, from its sums by prefetch and part."""
    if not sums.num_rows:
        return []
    sums = sums.sort_by([("group", "ascending"), ("prefetch_before", "ascending")])
    names = sums.column("group").combine_chunks().dictionary_encode()
    bounds = np.flatnonzero(np.diff(names.indices.to_numpy(), prepend=-1, append=-1)).tolist()
    # Plain numbers: a law that takes one group at a time is faster with them.
    prefetches: list[float] = numbers(sums, "prefetch_before").tolist()
    held_out: list[bool] = sums.column("held_out").to_pylist()
    rows = _sums(sums)
    intervals = numbers(sums, "interval"), numbers(sums, "interval2"), numbers(sums, "n")
    first_at, last_at = (sums.column(name).to_pylist() for name in ("first_at", "last_at"))
    found = []
    for name, begin, end in zip(names.dictionary.to_pylist(), bounds, bounds[1:], strict=False):
        here = slice(begin, end)
        interval_s, variation = _interval(*(float(part[here].sum()) for part in intervals))
        parts = list(zip(prefetches[here], held_out[here], rows[here], strict=True))
        train = {prefetch: one for prefetch, is_held_out, one in parts if not is_held_out}
        test = {prefetch: one for prefetch, is_held_out, one in parts if is_held_out}
        found.append(
            ConsumerGroup(
                name=name,
                rows=int(intervals[2][here].sum()),
                levels=_levels(train, test),
                found=_of_one_interval(identify(train, test), interval_s, variation),
                interval_s=interval_s,
                first_at=min(first_at[here]),
                last_at=max(last_at[here]),
            )
        )
    return found


def _sums(sums: pa.Table) -> list[Sums]:
    """The sums of each row. Those with u follow from the others: in a row it is a constant."""
    n, u = numbers(sums, "n"), numbers(sums, "prefetch_before")
    y, y_next = numbers(sums, "y"), numbers(sums, "y_next")
    whole = Sums(
        n=n,
        y=y,
        u=u * n,
        y_next=y_next,
        y_next2=numbers(sums, "y_next2"),
        s1=numbers(sums, "s1"),
        s2=u * y,
        s3=u * u * n,
        s4=numbers(sums, "s4"),
        s5=u * y_next,
    )
    columns = (getattr(whole, name).tolist() for name in FIELDS)
    return [Sums(*row) for row in zip(*columns, strict=True)]


def _levels(*parts: dict[float, Sums]) -> list[Level]:
    """What was measured at each prefetch, fitted and held out together."""
    together: dict[float, Sums] = {}
    for part in parts:
        for prefetch, sums in part.items():
            together[prefetch] = together[prefetch] + sums if prefetch in together else sums
    return [level_of(prefetch, together[prefetch]) for prefetch in sorted(together)]


def _interval(total_s: float, squares: float, n: float) -> tuple[float, float]:
    """The mean interval between samples, and how much it varies, relative to that."""
    mean_s = total_s / n
    variation = math.sqrt(max(squares / n - mean_s * mean_s, 0.0)) / mean_s if mean_s else 0.0
    return mean_s, variation


def _of_one_interval(found: Identified, interval_s: float, variation: float) -> Identified:
    if variation <= INTERVAL_VARIATION_MAX:
        return found
    return replace(
        found,
        accepted=False,
        reason=f"samples are {interval_s:.3g} s apart on average but vary by {variation:.0%}: "
        "a and b belong to one interval; learn from a time in which it did not change",
    )
