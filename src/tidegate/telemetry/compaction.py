"""Small files of a past hour become one, which says which files it stands for.

    small files → one file under a hidden name → renamed, replacing them → (later) they are deleted

Readers leave out what another file replaces, so at every step each row counts once, and a round
that was killed is finished by the next. Replaced files stay a while: whoever listed them may still
be reading them. Each writer compacts its own; files of writers that are gone are anyone's after a
day, and then the name of the whole follows from its parts, so that two who do it at a time make the
same file. Nothing is compacted while its hour can still get files.

A round is a process of its own at the lowest priority (housekeeping.py), so that it takes neither
the interpreter nor the processor from the node whose recorder starts it.
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

from tidegate.core.crash import crash_point
from tidegate.core.errors import InvalidValue
from tidegate.telemetry.housekeeping import Plan, Round
from tidegate.telemetry.lake import (
    Identity,
    Lake,
    LakeFile,
    counting,
    safe_name,
)
from tidegate.telemetry.retention import HOUR_S, expired_hours
from tidegate.telemetry.schemas import KINDS, Kind

# What one row group holds at least, if there is so much.
_ROWS_PER_GROUP = 100_000
_PR_SET_PDEATHSIG = 1


def run_round(plan: Plan, lake: Lake | None = None) -> Round:
    """Compact what is due, finish what was begun, delete what is too old."""
    lake = lake or Lake(plan.lake)
    done = Round()
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


def _is_due(hour: int, writer: str, files: Sequence[LakeFile], plan: Plan) -> bool:
    if (hour + 1) * HOUR_S + plan.grace_s > plan.now_s:
        return False
    if writer == safe_name(plan.writer):
        return True
    return max(file.modified_s for file in files) + plan.orphaned_s < plan.now_s


def _compact(lake: Lake, kind: Kind, files: list[LakeFile], plan: Plan, done: Round) -> None:
    """One writer's files of one hour."""
    identities = _identities(lake, kind, files, done)
    current = counting(identities)
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
            return  # somebody else was quicker, and has deleted what we were reading
        done.hours_compacted += 1
        done.files_replaced += len(current)
        if plan.linger_s:
            return
        identities = _identities(lake, kind, _of_same_hour(lake, kind, files[0]), done)
    _finish(lake, identities, plan, done)


def _of_same_hour(lake: Lake, kind: Kind, file: LakeFile) -> list[LakeFile]:
    found = lake.files(kind.name, since_s=file.hour * HOUR_S, until_s=(file.hour + 1) * HOUR_S)
    return [each for each in found if each.writer == file.writer]


def _finish(lake: Lake, identities: Mapping[LakeFile, Identity], plan: Plan, done: Round) -> None:
    """Delete what was replaced a while ago."""
    current = set(counting(identities))
    newest_s = max((file.modified_s for file in current), default=0.0)
    if newest_s + plan.linger_s > plan.now_s:
        return
    for file in identities:
        if file not in current:
            crash_point("before-replaced-deleted")
            lake.delete(file)
            done.files_deleted += 1


def _identities(
    lake: Lake, kind: Kind, files: Sequence[LakeFile], done: Round
) -> dict[LakeFile, Identity]:
    """Who they are, without those that we do not understand."""
    found: dict[LakeFile, Identity] = {}
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


def _row_groups(lake: Lake, kind: Kind, files: Sequence[LakeFile]) -> Iterator[Any]:
    """The rows of all files in order of time of their files, in pieces that fit into memory."""
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


def _delete_leftovers(lake: Lake, kind: Kind, plan: Plan, done: Round) -> None:
    """Of earlier lives of this writer; of others when they are surely dead."""
    for file in lake.files(kind.name, hidden=True):
        ours = file.writer == safe_name(plan.writer) and file.run != plan.run
        if ours or file.modified_s + plan.orphaned_s < plan.now_s:
            lake.delete(file)
            done.leftovers_deleted += 1


def main() -> None:
    """One round; the plan comes by stdin, since an address may hold a secret."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    os.nice(19)
    # Ends with the recorder that started it, however that ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        done = run_round(plan)
    except Exception as failure:
        done = Round(failure=f"{type(failure).__name__}: {failure}")
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
