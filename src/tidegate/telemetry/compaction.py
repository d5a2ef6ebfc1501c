"""One round of compaction: the small files of each past hour become one file.

    small files → one hidden file → renamed, it replaces them → (later) they are deleted

Readers ignore replaced files, so each row counts once at every step. The next round completes a
round that was killed. Replaced files stay for a while, because a reader may have listed them and
still read them. An hour is compacted only when no writer can add files to it any more.

Each writer compacts its own files. After a day without new files, any writer may compact those of
another. The id of a compacted file follows from the ids of its parts, so two concurrent rounds
produce the same file.

A round is a separate process of the lowest priority (recorder.py). It takes neither the
interpreter lock nor processor time from the node whose recorder started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.core.errors import InvalidValue
from tidegate.core.runtime import crash_point
from tidegate.telemetry.lake import (
    HOUR_S,
    FileIdentity,
    Lake,
    LakeFile,
    expired_hours,
    safe_name,
    valid_files,
)
from tidegate.telemetry.recorder import CompactionPlan, CompactionRound
from tidegate.telemetry.schemas import KINDS, RowKind

# The minimum number of rows in a row group, except for the last one.
_ROWS_PER_GROUP = 100_000
_PR_SET_PDEATHSIG = 1


def run_round(plan: CompactionPlan, lake: Lake | None = None) -> CompactionRound:
    """Delete expired hours and leftovers, compact the hours that are due, and return the counts."""
    lake = lake or Lake(plan.lake)
    done = CompactionRound()
    listed = {kind.name: lake.files(kind.name) for kind in KINDS.values()}
    recorded = {file.hour for files in listed.values() for file in files}
    expired = expired_hours(recorded, plan.retention_s, plan.now_s)
    for kind in KINDS.values():
        _delete_leftovers(lake, kind, plan, done)
        hours: dict[tuple[int, str], list[LakeFile]] = {}
        for file in listed[kind.name]:
            hours.setdefault((file.hour, file.writer), []).append(file)
        for hour in sorted(expired & {hour for hour, _ in hours}):
            lake.delete_hour(kind.name, hour)
            done.hours_expired += 1
        for (hour, writer), files in sorted(hours.items()):
            if hour not in expired and len(files) > 1 and _is_due(hour, writer, files, plan):
                _compact(lake, kind, files, plan, done)
    return done


def _is_due(hour: int, writer: str, files: Sequence[LakeFile], plan: CompactionPlan) -> bool:
    if (hour + 1) * HOUR_S + plan.grace_s > plan.now_s:
        return False
    if writer == safe_name(plan.writer):
        return True
    return max(file.modified_s for file in files) + plan.orphaned_s < plan.now_s


def _compact(
    lake: Lake, kind: RowKind, files: list[LakeFile], plan: CompactionPlan, done: CompactionRound
) -> None:
    """Compact the files of one writer and hour, or finish an earlier compaction."""
    identities = _identities(lake, kind, files, done)
    current = valid_files(identities)
    if len(current) > 1:
        parts = [identities[file] for file in current]
        replaced = frozenset({part.file_id for part in parts}).union(*(p.replaces for p in parts))
        try:
            lake.write(
                kind,
                files[0].hour,
                _row_groups(lake, kind, current),
                writer=plan.writer,
                author=files[0].writer,
                run=plan.run,
                replaces=replaced,
                file_id=uuid.uuid5(uuid.NAMESPACE_OID, " ".join(sorted(replaced))).hex,
            )
        except FileNotFoundError:
            return  # another round deleted a file while this one read it
        done.hours_compacted += 1
        done.files_replaced += len(current)
        if plan.linger_s:
            return
        identities = _identities(lake, kind, _of_same_hour(lake, kind, files[0]), done)
    _finish(lake, identities, plan, done)


def _of_same_hour(lake: Lake, kind: RowKind, file: LakeFile) -> list[LakeFile]:
    found = lake.files(kind.name, since_s=file.hour * HOUR_S, until_s=(file.hour + 1) * HOUR_S)
    return [each for each in found if each.writer == file.writer]


def _finish(
    lake: Lake,
    identities: Mapping[LakeFile, FileIdentity],
    plan: CompactionPlan,
    done: CompactionRound,
) -> None:
    """Delete the replaced files, once the newest current file is older than `linger_s`."""
    current = set(valid_files(identities))
    newest_s = max((file.modified_s for file in current), default=0.0)
    if newest_s + plan.linger_s > plan.now_s:
        return
    for file in identities:
        if file not in current:
            crash_point("before-replaced-deleted")
            lake.delete(file)
            done.files_deleted += 1


def _identities(
    lake: Lake, kind: RowKind, files: Sequence[LakeFile], done: CompactionRound
) -> dict[LakeFile, FileIdentity]:
    """Return the identities of files; skip files that are damaged or of another version."""
    found: dict[LakeFile, FileIdentity] = {}
    for file in files:
        try:
            identity = lake.identity(file)
        except FileNotFoundError:
            continue
        except InvalidValue:
            done.files_left_out += 1
            continue
        if (identity.kind, identity.version) == (kind.name, kind.version):
            found[file] = identity
        else:
            done.files_left_out += 1
    return found


def _row_groups(lake: Lake, kind: RowKind, files: Sequence[LakeFile]) -> Iterator[Any]:
    """Yield the rows of all files, oldest file first, in tables of limited size."""
    waiting: list[Any] = []
    rows = 0
    for file in sorted(files, key=lambda file: file.modified_s):
        table = lake.read(file).cast(kind.columns)
        waiting.append(table)
        rows += table.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield _joined(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(tables: list[Any]) -> Any:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _delete_leftovers(
    lake: Lake, kind: RowKind, plan: CompactionPlan, done: CompactionRound
) -> None:
    """Delete hidden files of this writer's earlier runs, and those of any writer after a day."""
    for file in lake.files(kind.name, hidden=True):
        ours = file.writer == safe_name(plan.writer) and file.run != plan.run
        if ours or file.modified_s + plan.orphaned_s < plan.now_s:
            lake.delete(file)
            done.leftovers_deleted += 1


def main() -> None:
    """Run one round; read the plan from stdin, because a lake location may contain a secret."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=CompactionPlan)
    os.nice(19)
    # The kernel ends this process when the recorder's process ends, for any reason.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        done = run_round(plan)
    except Exception as failure:
        done = CompactionRound(failure=f"{type(failure).__name__}: {failure}")
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
