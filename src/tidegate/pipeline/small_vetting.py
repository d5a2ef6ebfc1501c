"""The rules of `pipeline.vetting` in Arrow, for lakes of up to two million rows.

Spark takes seconds to compile the rules; Arrow applies them to a million rows in one second. Both
give the same reasons, check them in the same order, and share their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.pipeline.survey import UNREADABLE, Place, Survey, hour_of
from tidegate.pipeline.vetting import (
    AFTER_ITS_HOUR_S,
    AHEAD,
    BEFORE_ITS_HOUR_S,
    CLOCK_JUMP,
    FUTURE,
    MISSING,
    NEGATIVE,
    NO_TIME,
    NOT_A_NUMBER,
    OUT_OF_RANGE,
    Tally,
    figures_of,
    floats_of,
    required_of,
)
from tidegate.telemetry.schemas import Kind

_ROWS_MAX = 2_000_000
_THREADS = 2
_S = 1_000_000  # microseconds
_INTERVAL = {"interval_s"}

_Mask = NDArray[np.bool_]


def is_small(surveys: Iterable[Survey]) -> bool:
    """Return whether the files hold at most two million rows."""
    return sum(found.rows for found in surveys) <= _ROWS_MAX


def tally_small(
    place: Place, surveys: Iterable[Survey], since: datetime, until: datetime, now: datetime
) -> dict[str, dict[str | None, Tally]]:
    """Count the rows of each kind by the reason to leave them out; `None` counts usable rows.

    A file whose footer is readable but whose rows are not is removed from its survey.
    """
    counted: dict[str, dict[str | None, Tally]] = {}
    with ThreadPoolExecutor(_THREADS, "vetting") as threads:
        for found in surveys:
            kind, of_kind = found.kind, counted.setdefault(found.kind.name, {})
            files = [(place, path, kind, since, until, now) for path in found.paths]
            tallies = list(threads.map(lambda file: _tally_file(*file), files))
            found.paths = [
                path
                for path, of_file in zip(found.paths, tallies, strict=True)
                if of_file is not None
            ]
            if spoiled := len(files) - len(found.paths):
                found.left_out[UNREADABLE] += spoiled
            for of_file in tallies:
                for reason, tally in (of_file or {}).items():
                    of_kind[reason] = of_kind.get(reason, Tally()) + tally
    return counted


def _tally_file(
    place: Place, path: str, kind: Kind, since: datetime, until: datetime, now: datetime
) -> dict[str | None, Tally] | None:
    """Count the rows of one file by reason; return `None` if the rows cannot be read."""
    required, floats, figures = required_of(kind), floats_of(kind), figures_of(kind)
    names = list(dict.fromkeys([*required, *floats, *figures]))
    try:
        with place.files.open_input_file(path) as file:
            table = pq.ParquetFile(file).read(columns=names)
    except (pa.ArrowException, OSError):
        return None
    hour = hour_of(path)
    assert hour is not None, "files of a survey are in folders of date and hour"
    at_us = table["at"].cast(pa.int64()).fill_null(0).to_numpy()
    at_s, hour_s = at_us // _S, round(hour.timestamp())
    faults: list[tuple[str | None, _Mask]] = [
        (MISSING, _any(table, required, _null)),
        (NOT_A_NUMBER, _any(table, floats, lambda column: ~np.isfinite(_plain(column)))),
        (NEGATIVE, _any(table, figures, lambda column: _plain(column) < 0)),
        (NO_TIME, _any(table, _INTERVAL & set(names), lambda column: _plain(column) == 0)),
        (FUTURE, at_us > _us(now + AHEAD)),
        (
            CLOCK_JUMP,
            (at_s < hour_s - BEFORE_ITS_HOUR_S) | (at_s > hour_s + AFTER_ITS_HOUR_S),
        ),
        (OUT_OF_RANGE, (at_us < _us(since)) | (at_us >= _us(until))),
        (None, np.ones(table.num_rows, dtype=np.bool_)),
    ]
    found: dict[str | None, Tally] = {}
    # A row counts under the first reason that applies.
    left = np.ones(table.num_rows, dtype=np.bool_)
    for reason, mask in faults:
        these = at_us[left & mask]
        if these.size:
            found[reason] = Tally(these.size, these.min() / _S, these.max() / _S)
        left &= ~mask
    return found


def _any(table: pa.Table, names: Iterable[str], wrong: Callable[[pa.ChunkedArray], _Mask]) -> _Mask:
    nothing = np.zeros(table.num_rows, dtype=np.bool_)
    return reduce(np.logical_or, (wrong(table[name]) for name in names), nothing)


def _null(column: pa.ChunkedArray) -> _Mask:
    mask: _Mask = column.is_null().to_numpy()
    return mask


def _plain(column: pa.ChunkedArray) -> NDArray[np.float64]:
    # Null is allowed in these columns; null in required columns is counted as `MISSING`.
    values: NDArray[np.float64] = column.fill_null(0).to_numpy()
    return values


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * _S)
