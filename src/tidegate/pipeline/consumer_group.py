"""Consumer groups: sums by prefetch, and the model that the law identifies from them.

The input is a table of some dozens of rows per group, into which Spark has aggregated the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.laws.identification import Identified, LevelSums, identify_levels
from tidegate.laws.least_squares import FIELDS, Sums
from tidegate.pipeline.local_table import Numbers, numbers, seconds
from tidegate.telemetry.knowledge import Model

# The standard deviation of the sampling interval, relative to its mean. a and b belong to one
# interval, so samples of several intervals give no valid model.
INTERVAL_VARIATION_MAX = 0.25


@dataclass(frozen=True)
class ConsumerGroup:
    """A consumer group and its identified model."""

    name: str
    rows: int
    found: Identified
    interval_s: float
    first_s: float
    last_s: float

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


@dataclass(frozen=True)
class Levels:
    """The measured arrival rate at each prefetch of each group, over all samples."""

    # The index of the group.
    group: NDArray[np.int64]
    prefetch: Numbers
    n: Numbers
    mean_per_s: Numbers
    variance: Numbers


def consumer_groups(sums: pa.Table) -> tuple[list[ConsumerGroup], Levels]:
    """Return every group with its model, in the order of names, and the levels of all groups.

    `sums` is the result of `by_level`: a row per group, prefetch and part (fitted or held out).
    """
    sums = sums.sort_by([("group", "ascending"), ("prefetch_before", "ascending")])
    names = sums.column("group").combine_chunks().dictionary_encode()
    of_group = names.indices.to_numpy().astype(np.int64)
    begins = np.flatnonzero(np.diff(of_group, prepend=-1))
    prefetch, held_out = numbers(sums, "prefetch_before"), numbers(sums, "held_out") > 0.0
    whole = _sums(sums)
    levels = _levels(whole, of_group, prefetch)
    if not len(begins):
        return [], levels
    values = np.stack(_parts(whole), axis=1)
    n = np.add.reduceat(whole.n, begins)
    interval_s = np.add.reduceat(numbers(sums, "interval"), begins) / n
    interval2 = np.add.reduceat(numbers(sums, "interval2"), begins) / n
    variation_s = np.sqrt(np.maximum(interval2 - interval_s**2, 0.0))
    first_s = np.minimum.reduceat(seconds(sums, "first_at"), begins)
    last_s = np.maximum.reduceat(seconds(sums, "last_at"), begins)
    found = []
    for number, (name, begin, end) in enumerate(
        zip(names.dictionary.to_pylist(), begins, [*begins[1:], len(values)], strict=True)
    ):
        u, part, test = prefetch[begin:end], values[begin:end], held_out[begin:end]
        identified = identify_levels(
            LevelSums(u[~test], part[~test]), LevelSums(u[test], part[test])
        )
        found.append(
            ConsumerGroup(
                name=name,
                rows=int(n[number]),
                found=_of_one_interval(
                    identified, float(interval_s[number]), float(variation_s[number])
                ),
                interval_s=float(interval_s[number]),
                first_s=float(first_s[number]),
                last_s=float(last_s[number]),
            )
        )
    return found, levels


def _sums(sums: pa.Table) -> Sums:
    """Return the sums of least squares, one element per row.

    The prefetch u is constant within a row, so the sums that contain u follow from the other sums.
    """
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


def _levels(sums: Sums, of_group: NDArray[np.int64], prefetch: Numbers) -> Levels:
    new = (np.diff(of_group, prepend=-1) != 0) | (np.diff(prefetch, prepend=np.nan) != 0)
    begins = np.flatnonzero(new)
    if not len(begins):
        return Levels(of_group, *(prefetch for _ in range(4)))
    together = Sums(*(np.add.reduceat(part, begins) for part in _parts(sums)))
    return Levels(
        group=of_group[begins],
        prefetch=prefetch[begins],
        n=together.n,
        mean_per_s=together.y_next / together.n,
        variance=np.maximum(together.y_next_spread() / together.n, 0.0),
    )


def _of_one_interval(found: Identified, interval_s: float, variation_s: float) -> Identified:
    if variation_s <= INTERVAL_VARIATION_MAX * interval_s:
        return found
    return replace(
        found,
        accepted=False,
        reason=f"samples are {interval_s:.3g} s apart on average but vary by {variation_s:.3g} s: "
        "a and b belong to one interval; learn from a time in which it did not change",
    )
