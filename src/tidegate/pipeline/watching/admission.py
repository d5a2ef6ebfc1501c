"""Which files of the lake a stream takes next, and which it never takes.

A file is known by the id in its footer. A copy of a file is therefore not read again, and neither
is a compacted file whose parts have all been read. Damaged files and files with another version or
other columns are left out with a reason.

Files are taken in the order of the time of their rows. A later batch never holds rows that an
earlier batch has made late. A watch that starts on a week of compacted history counts the same as a
watch that ran during that week. Spark's own file source cannot promise this: it orders files by
modification time and reads no footers.
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

# How far ahead of the file's modification time a row may be. A single row from next year would
# make all other rows late.
AHEAD_S_MAX = 600.0

# Reasons to leave out files or rows, besides those of `survey`.
ALREADY_READ = "read under another name"
VANISHED = "removed before it was read"
AHEAD = "in the future"
LATE = "too late"
BEFORE = "before the time asked for"
READ_BEFORE = "read before it was compacted"


@dataclass(frozen=True)
class LakeFile:
    """A file to be read, possibly without some of its rows."""

    path: str
    kind: str
    file_id: str
    rows: int
    first_s: float
    last_s: float
    replaces: tuple[str, ...] = ()
    # Only rows between these times, both included, are read; the others are counted by reason.
    from_s: float | None = None
    until_s: float | None = None
    rows_left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read, and why."""

    path: str
    reason: str


def examined(place: Place, path: str, kind: Kind, now_s: float) -> LakeFile | LeftOut:
    """Return the file as its footer describes it, or the reason to leave it out.

    `now_s` replaces a modification time that the file system does not know.
    """
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
    """Return the files of the next batch, and the files whose rows come or came with another file.

    `seen_ids` are the ids that earlier batches took. A batch has at most `files_max` files, plus
    those that begin before its last row minus `delay_s`: they would be late in a later batch.
    """
    ordered = sorted(candidates, key=lambda file: (file.first_s, file.last_s, file.path))
    # If a compacted file and its parts are present, take the compacted file: it is one instead of
    # many.
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
    """Return the file without its rows before `from_s`, which are counted under `reason`."""
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
    """Return the rows of a record batch between two times, both included; `None` means no limit."""
    if from_s is not None:
        batch = batch.filter(pc.greater_equal(batch["at"], _scalar(from_s)))
    if until_s is not None:
        batch = batch.filter(pc.less_equal(batch["at"], _scalar(until_s)))
    return batch


def stand_in(place: Place, missing: LakeFile, now_s: float) -> LakeFile | None:
    """Return the compacted file that replaced a missing file, or `None`."""
    folder = missing.path.rsplit("/", 1)[0]
    selector = pa.fs.FileSelector(folder, allow_not_found=True)
    for info in place.files.get_file_info(selector):
        # `examine_file` rejects hidden files and files of other formats.
        file = examined(place, info.path, KINDS[missing.kind], now_s)
        if isinstance(file, LakeFile) and missing.file_id in file.replaces:
            return file
    return None


def _without_ahead(place: Place, file: LakeFile, until_s: float) -> LakeFile:
    """Return the file without rows after `until_s`, which come from a clock that ran ahead."""
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
    # Use raw microseconds: the times of a clock that is far off exceed Python's `datetime`.
    at_us = at.cast(pa.int64())
    return pc.min(at_us).as_py() / 1e6, pc.max(at_us).as_py() / 1e6


def _scalar(at_s: float) -> Any:
    return pa.scalar(round(at_s * 1e6), pa.int64()).cast(pa.timestamp("us", "UTC"))
