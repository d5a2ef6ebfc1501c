"""Which files of the lake come next, and which never will.

A file is known by the id in its footer, so a copy is not read again, nor is a compacted file whose
parts have all been read. Cut files, other versions and other columns are left out with a reason.

Files are taken in the order of their rows' time and never so that a later batch holds rows that an
earlier one has made late: whoever starts on a week of history, compacted by the hour, counts the
same as whoever watched it happen. Spark's own file source goes by the time of modification and
reads no footers; it can promise neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from tidegate.pipeline.survey import DUPLICATE, REPLACED, UNREADABLE, Place, read_footer
from tidegate.telemetry.schemas import KINDS, Kind

# No sane clock is further ahead of the lake's: one row from next year would make all others late.
AHEAD_S_MAX = 600.0

# Reasons, beside those of the survey.
ALREADY_READ = "read under another name"
VANISHED = "removed before it was read"
AHEAD = "in the future"
LATE = "too late"
BEFORE = "before the time asked for"
READ_BEFORE = "read before it was compacted"


@dataclass(frozen=True)
class LakeFile:
    """A file to be read."""

    path: str
    kind: str
    file_id: str
    rows: int
    first_s: float
    last_s: float
    replaces: tuple[str, ...] = ()
    # Only rows from here to there are read, both included; the others are counted by reason.
    from_s: float | None = None
    until_s: float | None = None
    rows_left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read, and why."""

    path: str
    reason: str


def examined(place: Place, path: str, kind: Kind, now_s: float) -> LakeFile | LeftOut:
    """What a file says of itself, or why it is left out."""
    info = place.files.get_file_info(path)
    if info.type != pa.fs.FileType.File:
        return LeftOut(path, VANISHED)
    footer = read_footer(place, kind, path)
    if footer.fault:
        return LeftOut(path, footer.fault)
    try:
        first_s, last_s = footer.first_s, footer.last_s
        if first_s is None or last_s is None:
            at = _times(place, path)
            first_s, last_s = _ends_s(at)
    except (pa.ArrowException, OSError):
        return LeftOut(path, UNREADABLE)
    replaces = tuple(sorted(footer.replaces))
    file = LakeFile(path, kind.name, footer.file_id, footer.rows, first_s, last_s, replaces)
    written_s = info.mtime_ns / 1e9 if info.mtime_ns else now_s
    until_s = written_s + AHEAD_S_MAX
    return file if last_s <= until_s else _without_ahead(place, file, until_s)


def chosen(
    candidates: Iterable[LakeFile], seen_ids: Collection[str], files_max: int, delay_s: float
) -> tuple[list[LakeFile], list[LeftOut]]:
    """The files of the next batch, and those whose rows come, or came, with another one."""
    ordered = sorted(candidates, key=lambda file: (file.first_s, file.last_s, file.path))
    # A compacted file beside its parts: it is one file instead of many.
    replaced = {part for file in ordered for part in file.replaces if part not in seen_ids}
    taken: list[LakeFile] = []
    left_out: list[LeftOut] = []
    known = set(seen_ids)
    last_s = float("-inf")
    for file in ordered:
        if len(taken) >= files_max and file.first_s >= last_s - delay_s:
            break
        if file.file_id in known:
            left_out.append(LeftOut(file.path, DUPLICATE))
        elif file.replaces and all(part in seen_ids for part in file.replaces):
            left_out.append(LeftOut(file.path, ALREADY_READ))
        elif file.file_id in replaced:
            left_out.append(LeftOut(file.path, REPLACED))
        else:
            taken.append(file)
            last_s = max(last_s, file.last_s)
        known.add(file.file_id)
    return taken, left_out


def without_late(place: Place, file: LakeFile, from_s: float, reason: str) -> LakeFile:
    """The file without its rows before a time, which are counted under a reason."""
    if max(file.first_s, file.from_s or 0.0) >= from_s:
        return file
    at = _times(place, file.path)
    if file.from_s is not None:
        at = at.filter(pc.greater_equal(at, _scalar(file.from_s)))
    if file.until_s is not None:
        at = at.filter(pc.less_equal(at, _scalar(file.until_s)))
    late = int(pc.sum(pc.less(at, _scalar(from_s))).as_py() or 0)
    return replace(
        file,
        rows=file.rows - late,
        from_s=from_s,
        rows_left_out={**file.rows_left_out, reason: late},
    )


def between(batch: Any, from_s: float | None, until_s: float | None) -> Any:
    """Of a record batch the rows between two times, both included."""
    if from_s is not None:
        batch = batch.filter(pc.greater_equal(batch["at"], _scalar(from_s)))
    if until_s is not None:
        batch = batch.filter(pc.less_equal(batch["at"], _scalar(until_s)))
    return batch


def stand_in(place: Place, missing: LakeFile, now_s: float) -> LakeFile | None:
    """The compacted file that took the place of one that is gone."""
    folder = missing.path.rsplit("/", 1)[0]
    selector = pa.fs.FileSelector(folder, allow_not_found=True)
    for info in place.files.get_file_info(selector):
        # One that is hidden, or no Parquet, is left out by its footer.
        file = examined(place, info.path, KINDS[missing.kind], now_s)
        if isinstance(file, LakeFile) and missing.file_id in file.replaces:
            return file
    return None


def _without_ahead(place: Place, file: LakeFile, until_s: float) -> LakeFile:
    """The file without the rows of a clock that ran ahead."""
    at = _times(place, file.path)
    sane = at.filter(pc.less_equal(at, _scalar(until_s)))
    return replace(
        file,
        rows=len(sane),
        last_s=_ends_s(sane)[1] if len(sane) else file.first_s,
        until_s=until_s,
        rows_left_out={AHEAD: len(at) - len(sane)},
    )


def _times(place: Place, path: str) -> Any:
    with place.files.open_input_file(path) as opened:
        at = pq.ParquetFile(opened).read(columns=["at"])["at"]
    return at.cast(pa.timestamp("us", "UTC"))


def _ends_s(at: Any) -> tuple[float, float]:
    if not len(at):
        return 0.0, 0.0
    # Whole microseconds: a clock far off gives times that Python's own have no year for.
    at_us = at.cast(pa.int64())
    return pc.min(at_us).as_py() / 1e6, pc.max(at_us).as_py() / 1e6


def _scalar(at_s: float) -> Any:
    return pa.scalar(round(at_s * 1e6), pa.int64()).cast(pa.timestamp("us", "UTC"))
