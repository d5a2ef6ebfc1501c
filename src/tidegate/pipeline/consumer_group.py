"""Consumer groups as the laws see them: sums by prefetch, and the model that follows from them.

Spark has added up millions of samples; what comes here is some dozens of rows per group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.laws.identification import Identified, identify
from tidegate.laws.least_squares import FIELDS, Sums
from tidegate.laws.linear_range import Level
from tidegate.pipeline.local_table import Numbers, numbers, seconds
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
    first_s: float
    last_s: float

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
            parameters={
                "a": found.a,
                "b": found.b,
                "offset_per_s": found.offset_per_s,
                "prefetch_low": found.linear_range.low,
                "prefetch_high": found.linear_range.high,
                "interval_s": self.interval_s,
            },
            quality={
                "r2_train": found.r2_train,
                "r2_test": found.r2_test,
                "rmse_train_per_s": found.rmse_train_per_s,
                "rmse_test_per_s": found.rmse_test_per_s,
                "rows_train": found.n_train,
                "rows_test": found.n_test,
            },
            rows=self.rows,
            from_s=self.first_s,
            to_s=self.last_s,
        )


def consumer_groups(sums: pa.Table) -> list[ConsumerGroup]:
    """Every group with its model, by name, from its sums by prefetch and part."""
    if not sums.num_rows:
        return []
    sums = sums.sort_by([("group", "ascending"), ("prefetch_before", "ascending")])
    names = sums.column("group").combine_chunks().dictionary_encode()
    of_group = names.indices.to_numpy()
    begins = np.flatnonzero(np.diff(of_group, prepend=-1))
    # Plain numbers: a law that takes one group at a time is faster with them.
    prefetches: list[float] = numbers(sums, "prefetch_before").tolist()
    held_out: list[bool] = sums.column("held_out").to_pylist()
    whole = _sums(sums)
    rows = [Sums(*row) for row in zip(*(part.tolist() for part in _parts(whole)), strict=True)]
    levels = _levels(whole, of_group, numbers(sums, "prefetch_before"))
    n = np.add.reduceat(whole.n, begins)
    interval_s = np.add.reduceat(numbers(sums, "interval"), begins) / n
    interval2 = np.add.reduceat(numbers(sums, "interval2"), begins) / n
    variation_s = np.sqrt(np.maximum(interval2 - interval_s**2, 0.0))
    first_s = np.minimum.reduceat(seconds(sums, "first_at"), begins)
    last_s = np.maximum.reduceat(seconds(sums, "last_at"), begins)
    found = []
    bounds = [*begins.tolist(), len(rows)]
    for number, name in enumerate(names.dictionary.to_pylist()):
        here = slice(bounds[number], bounds[number + 1])
        parts = list(zip(prefetches[here], held_out[here], rows[here], strict=True))
        identified = identify(
            train={prefetch: one for prefetch, is_held_out, one in parts if not is_held_out},
            test={prefetch: one for prefetch, is_held_out, one in parts if is_held_out},
        )
        found.append(
            ConsumerGroup(
                name=name,
                rows=int(n[number]),
                levels=levels[number],
                found=_of_one_interval(
                    identified, float(interval_s[number]), float(variation_s[number])
                ),
                interval_s=float(interval_s[number]),
                first_s=float(first_s[number]),
                last_s=float(last_s[number]),
            )
        )
    return found


def _sums(sums: pa.Table) -> Sums:
    """The sums of all rows. Those with u follow from the others: in a row it is a constant."""
    n, u = numbers(sums, "n"), numbers(sums, "prefetch_before")
    y, y_next = numbers(sums, "y"), numbers(sums, "y_next")
    return Sums(
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


def _parts(sums: Sums) -> list[Numbers]:
    return [getattr(sums, name) for name in FIELDS]


def _levels(sums: Sums, of_group: NDArray[Any], prefetch: Numbers) -> list[list[Level]]:
    """What was measured at each prefetch of each group, fitted and held out together."""
    new = (np.diff(of_group, prepend=-1) != 0) | (np.diff(prefetch, prepend=np.nan) != 0)
    begins = np.flatnonzero(new)
    together = Sums(*(np.add.reduceat(part, begins) for part in _parts(sums)))
    mean = together.y_next / together.n
    variance = np.maximum(together.y_next_spread() / together.n, 0.0)
    columns = (prefetch[begins], together.n, mean, variance)
    levels: list[list[Level]] = [[] for _ in range(of_group[-1] + 1)]
    for group, *measured in zip(
        of_group[begins].tolist(), *(column.tolist() for column in columns), strict=True
    ):
        levels[group].append(Level(*measured))
    return levels


def _of_one_interval(found: Identified, interval_s: float, variation_s: float) -> Identified:
    if variation_s <= INTERVAL_VARIATION_MAX * interval_s:
        return found
    return replace(
        found,
        accepted=False,
        reason=f"samples are {interval_s:.3g} s apart on average but vary by {variation_s:.3g} s: "
        "a and b belong to one interval; learn from a time in which it did not change",
    )
