"""The knowledge folder: several writers, broken files, newer ones, and places that are none."""

from __future__ import annotations

import multiprocessing
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidegate.telemetry.models import (
    RUNS_KEPT,
    SCHEMA,
    JobRecord,
    LearningRun,
    ModelRegistry,
    ModelRegistryRefused,
    StoredModel,
)

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
WRITERS, RUNS_EACH = 4, 10


def model(subject: str, *, accepted: bool = True) -> StoredModel:
    return StoredModel(subject, accepted, "because", {"a": 0.5}, {}, rows=3, from_s=1.0, to_s=2.0)


def learn(
    knowledge: ModelRegistry,
    *subjects: str,
    kind: str = "prefetch",
    table: str = "t",
    now: datetime = NOON,
) -> str:
    """What a run of `learn` writes down."""
    run = knowledge.begin_run(now)
    (knowledge.run_folder(run) / table).mkdir()
    knowledge.add_models(kind, run, NOON, [model(subject) for subject in subjects])
    job = JobRecord("a job", 1.0, tables={table: 1})
    knowledge.finish_run(LearningRun(SCHEMA, run, NOON, NOON, NOON, 1.0, "lake", [], {}, [job]))
    return run


def learn_often(folder: Path, name: str) -> None:
    for number in range(RUNS_EACH):
        learn(ModelRegistry(folder), f"{name}-{number}", table=f"table-{name}")


def test_several_writers_at_a_time_forget_nothing_of_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names = [f"writer-{number}" for number in range(WRITERS)]
    writers = [context.Process(target=learn_often, args=(tmp_path, name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    knowledge = ModelRegistry(tmp_path)
    assert knowledge.newest_version("prefetch") == WRITERS * RUNS_EACH
    wanted = {f"{name}-{number}" for name in names for number in range(RUNS_EACH)}
    assert set(knowledge.accepted("prefetch")) == wanted
    assert all(knowledge.table_folder(f"table-{name}") for name in names)
    assert len(list((tmp_path / "runs").iterdir())) <= RUNS_KEPT + WRITERS


def test_old_runs_go_and_one_that_is_under_way_stays(tmp_path: Path) -> None:
    knowledge = ModelRegistry(tmp_path)
    killed, under_way = knowledge.begin_run(NOON), knowledge.begin_run(NOON)
    os.utime(knowledge.run_folder(killed), (1e9, 1e9))

    later = [NOON + timedelta(minutes=minute) for minute in range(1, 2 * RUNS_KEPT)]
    runs = [learn(knowledge, "one", now=now) for now in later]

    left = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert left == [under_way, *runs[-RUNS_KEPT:]]


def test_marks_that_are_broken_follow_from_the_models(tmp_path: Path) -> None:
    complaints: list[str] = []
    knowledge = ModelRegistry(tmp_path, complaints.append)
    learn(knowledge, "one", "two")
    learn(knowledge, "queue", kind="capacity")
    marks = tmp_path / "models" / "accepted.json"
    marks.write_bytes(marks.read_bytes()[:20])

    learn(knowledge, "two")

    assert complaints[0].startswith(f"{marks} cannot be read")
    assert set(knowledge.accepted("prefetch")) == {"one", "two"}
    assert set(knowledge.accepted("capacity")) == {"queue"}


def test_a_newer_folder_is_neither_misread_nor_written_to(tmp_path: Path) -> None:
    complaints: list[str] = []
    knowledge = ModelRegistry(tmp_path, complaints.append)
    learn(knowledge, "one")
    latest = tmp_path / "latest.json"
    newer = latest.read_bytes().replace(b'"schema": 1', b'"schema": 2')
    latest.write_bytes(newer)

    assert knowledge.latest() is None
    assert "newer Tidegate" in complaints[0]
    with pytest.raises(ModelRegistryRefused, match="upgrade this one, or name another folder"):
        knowledge.begin_run(NOON)
    assert latest.read_bytes() == newer


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(ModelRegistryRefused, match="cannot be written: "):
        ModelRegistry(tmp_path / "file" / "knowledge").check_writable()
