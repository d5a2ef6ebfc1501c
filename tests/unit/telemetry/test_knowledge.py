"""The knowledge folder: what readers find, whatever happened to its files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidegate.telemetry.models import SCHEMA, JobRecord, LearningRun, ModelRegistry, StoredModel

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def knowledge(tmp_path: Path, complaints: list[str]) -> ModelRegistry:
    return ModelRegistry(tmp_path / "knowledge", complaints.append)


def model(subject: str, *, accepted: bool = True, **parameters: float) -> StoredModel:
    return StoredModel(subject, accepted, "says why", parameters, {"r2": 0.9}, 10, 5.0, 9.0)


def finish(knowledge: ModelRegistry, at: datetime, *tables: str) -> str:
    name = knowledge.begin_run(at)
    for table in tables:
        (knowledge.run_folder(name) / table).mkdir()
    record = JobRecord("job", 1.0, tables=dict.fromkeys(tables, 1))
    knowledge.finish_run(LearningRun(SCHEMA, name, at, at, at, 1.0, "lake", [], {}, [record]))
    return name


def test_before_the_first_run_there_is_nothing(
    knowledge: ModelRegistry, complaints: list[str]
) -> None:
    assert knowledge.latest() is None
    assert knowledge.run() is None
    assert knowledge.table_folder("stability") is None
    assert knowledge.accepted("identification") == {}
    assert complaints == []


def test_the_newest_accepted_model_of_each_subject_counts(knowledge: ModelRegistry) -> None:
    knowledge.add_models("plant", "run 1", NOW, [model("a", gain=1.0), model("b", gain=1.0)])
    # Poorer data the next time: b is refused, and its old model stays.
    poor = model("b", accepted=False, gain=2.0)
    knowledge.add_models("plant", "run 2", NOW, [model("a", gain=2.0), poor])
    knowledge.add_models("plant", "run 3", NOW, [])

    accepted = knowledge.accepted("plant")

    assert {name: one.parameters["gain"] for name, one in accepted.items()} == {"a": 2.0, "b": 1.0}
    assert knowledge.newest_version("plant") == 3
    marked = json.loads((knowledge.folder / "models" / "accepted.json").read_text())
    assert marked == {"plant": {"a": 2, "b": 1}}
    written = json.loads((knowledge.folder / "models" / "plant" / "000002.json").read_text())
    assert written["data"] == {"from": 5.0, "to": 9.0, "rows": 20}
    assert written["models"][1] == {
        "subject": "b",
        "accepted": False,
        "reason": "says why",
        "rows": 10,
        "parameters": {"gain": 2.0},
        "quality": {"r2": 0.9},
        "from": 5.0,
        "to": 9.0,
    }


def test_a_table_is_found_in_the_newest_run_that_has_it(knowledge: ModelRegistry) -> None:
    first = finish(knowledge, NOW, "stability", "phases")
    second = finish(knowledge, NOW + timedelta(minutes=1), "phases")

    assert knowledge.table_folder("stability") == knowledge.run_folder(first) / "stability"
    assert knowledge.table_folder("phases") == knowledge.run_folder(second) / "phases"
    newest = knowledge.run()
    assert newest is not None
    assert newest.run == second


def test_runs_in_the_same_second_have_names_of_their_own(knowledge: ModelRegistry) -> None:
    assert knowledge.begin_run(NOW) == "20260314T120000Z"
    assert knowledge.begin_run(NOW) == "20260314T120000Z-002"


def test_old_runs_go_but_not_those_that_a_table_is_in(knowledge: ModelRegistry) -> None:
    kept = finish(knowledge, NOW, "rare")
    runs = [finish(knowledge, NOW + timedelta(minutes=n), "often") for n in range(1, 15)]

    left = sorted(folder.name for folder in (knowledge.folder / "runs").iterdir())

    assert left == [kept, *runs[-10:]]
    assert knowledge.table_folder("rare") is not None


def test_a_broken_file_is_passed_over_with_a_sentence(
    knowledge: ModelRegistry, complaints: list[str]
) -> None:
    knowledge.add_models("plant", "run 1", NOW, [model("a")])
    knowledge.add_models("plant", "run 2", NOW, [model("b")])
    (knowledge.folder / "models" / "plant" / "000002.json").write_text('{"schema": 1')

    assert set(knowledge.accepted("plant")) == {"a"}
    assert len(complaints) == 1
    assert "000002.json cannot be read and was passed over" in complaints[0]
    # And what comes next has a number of its own.
    assert knowledge.add_models("plant", "run 3", NOW, [model("b")]).version == 3
    assert set(knowledge.accepted("plant")) == {"a", "b"}


def test_model_registry_leaves_no_partial_files(knowledge: ModelRegistry) -> None:
    finish(knowledge, NOW, "stability")
    knowledge.add_models("plant", "run", NOW, [model("a")])

    hidden = [file.name for file in knowledge.folder.rglob(".*") if file.is_file()]
    assert hidden == [".lock"]
