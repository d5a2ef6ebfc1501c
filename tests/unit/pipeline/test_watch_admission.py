"""Which files a watcher takes, in which order, and which it leaves out."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

from lake_of import NOON, LakeOf

from tidegate.pipeline.lake import (
    DUPLICATE,
    OTHER_COLUMNS,
    OTHER_VERSION,
    REPLACED,
    UNREADABLE,
    LakeFolder,
)
from tidegate.pipeline.stream_source import (
    ALREADY_READ,
    BatchEntry,
    CandidateFile,
    FileLog,
    SkippedFile,
    choose_files,
    examine_file,
)
from tidegate.telemetry.schemas import QUEUE_SAMPLES, VERSION_KEY


def file(name: str, first: float, last: float, *replaces: str) -> CandidateFile:
    return CandidateFile(f"/{name}", "queue_samples", name, 1, first, last, replaces)


def names(files: list[CandidateFile]) -> list[str]:
    return [one.file_id for one in files]


def test_files_come_in_the_order_of_their_rows() -> None:
    files = [file("c", 120, 179), file("a", 0, 59), file("b", 60, 119)]

    assert names(choose_files(files, set(), 2, 60.0)[0]) == ["a", "b"]


def test_a_batch_never_makes_the_rows_of_the_next_one_late() -> None:
    # One writer's hour is compacted, the other's is not.
    hour = file("hour", 0, 3599)
    minutes = [file(f"m{n:02}", 60 * n, 60 * n + 59) for n in range(70)]

    left = [hour, *minutes]
    sizes = []
    newest_s = float("-inf")
    while left:
        taken, _ = choose_files(left, set(), 1, 60.0)
        assert all(one.first_s >= newest_s - 60.0 for one in taken)
        newest_s = max(one.last_s for one in taken)
        left = [one for one in left if one not in taken]
        sizes.append(len(taken))

    # The first minute, then the hour with all that it would make late, then one at a time again.
    assert sizes == [1, 59, *[1] * 11]


def test_copies_and_compacted_files_are_taken_once() -> None:
    whole = file("whole", 0, 119, "a", "b")

    # Beside its parts.
    taken, left_out = choose_files([file("a", 0, 59), file("b", 60, 119), whole], set(), 9, 60.0)
    assert names(taken) == ["whole"]
    assert {one.reason for one in left_out} == {REPLACED}
    # After them.
    taken, left_out = choose_files([whole], {"a", "b"}, 9, 60.0)
    assert (taken, left_out) == ([], [SkippedFile("/whole", ALREADY_READ)])
    # After one of them: the rows sort it out.
    assert names(choose_files([whole], {"a"}, 9, 60.0)[0]) == ["whole"]
    # A copy, before and after.
    copy = CandidateFile("/copy", "queue_samples", "a", 1, 0, 59)
    taken, left_out = choose_files([file("a", 0, 59), copy], set(), 9, 60.0)
    assert (names(taken), len(left_out)) == (["a"], 1)
    assert choose_files([copy], {"a"}, 9, 60.0) == ([], [SkippedFile("/copy", DUPLICATE)])


def test_unreadable_lake_file_is_left_out_with_a_reason(lake_of: LakeOf) -> None:
    place = LakeFolder.of(str(lake_of.folder))
    rows = [{"at": NOON + timedelta(seconds=s)} for s in (0, 5, 9)]
    good = lake_of.write(QUEUE_SAMPLES, rows, file_id="good")
    cut = lake_of.write(QUEUE_SAMPLES, rows)
    cut.write_bytes(cut.read_bytes()[:-200])
    future = lake_of.write(QUEUE_SAMPLES, rows, metadata={VERSION_KEY: b"2"})
    fewer = lake_of.write(QUEUE_SAMPLES, rows)
    shutil.copy(lake_of.write(QUEUE_SAMPLES, [], schema=QUEUE_SAMPLES.columns.remove(3)), fewer)

    found = [examine_file(place, str(p), QUEUE_SAMPLES, 0.0) for p in (good, cut, future, fewer)]

    start_s = NOON.timestamp()
    assert found == [
        CandidateFile(str(good), "queue_samples", "good", 3, start_s, start_s + 9),
        SkippedFile(str(cut), UNREADABLE),
        SkippedFile(str(future), OTHER_VERSION),
        SkippedFile(str(fewer), OTHER_COLUMNS),
    ]


def test_rows_of_a_clock_that_ran_ahead_are_left_out(lake_of: LakeOf) -> None:
    rows = [{"at": NOON + timedelta(days=d)} for d in (0, 0, 400)]
    path = lake_of.write(QUEUE_SAMPLES, rows)
    os.utime(path, (NOON.timestamp(), NOON.timestamp()))

    found = examine_file(LakeFolder.of(str(lake_of.folder)), str(path), QUEUE_SAMPLES, 0.0)

    assert isinstance(found, CandidateFile)
    assert (found.rows, found.last_s) == (2, NOON.timestamp())
    assert found.rows_left_out == {"in the future": 1}


def test_the_log_remembers_over_restarts_and_in_short(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    for number in range(250):
        entry = BatchEntry(
            [file(f"f{number}", number, number + 1)], [SkippedFile(f"/x{number}", "cut")]
        )
        assert log.append(entry) == number + 1
        log.forget(number + 1, {f"/f{number}", f"/x{number}"})

    again = FileLog(tmp_path)

    assert len(list(tmp_path.iterdir())) < 120
    assert (again.last, again.newest_s) == (250, 250.0)
    assert set(again.ids) == {f"f{number}" for number in range(250)}
    assert again.counts(250).files == 250
    assert again.counts(250).files_left_out == {"cut": 250}
    assert again.entry(250) == entry
    # Paths that were gone from the lake are forgotten, those of the last batches are not.
    assert {"/f249", "/x249"} <= again.paths
    assert "/f3" not in again.paths
