"""`tidegate report`: where it looks, where it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from knowledge_of import KnowledgeOf
from refused_command import Said

from tidegate.cli import app

Report = Callable[..., Said]


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Report:
    """`tidegate report` in this process, in `tmp_path` or in the folder that is named."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)

    def run(*words: str, folder: Path = tmp_path) -> Said:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["tidegate", "report", *words])
        with pytest.raises(SystemExit) as ended:
            app.run_app()
        printed = capsys.readouterr()
        return Said(ended.value.code, printed.out, printed.err)

    return run


def test_report_finds_the_models_beside_the_store(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.folder = tmp_path / "data" / "knowledge"
    knowledge_of.write()
    (tmp_path / "tidegate.toml").write_text('[store]\ndata = "data"\n')
    done = report("--json")
    assert json.loads(done.out)["files"] == ["report.html"]


def test_report_finds_the_models_of_a_named_data_folder(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.folder = tmp_path / "elsewhere" / "knowledge"
    knowledge_of.write()
    done = report("--data", "elsewhere")
    assert (done.code, done.out) == (0, "report.html\n")


def test_before_anything_was_learned_it_says_what_to_run(tmp_path: Path, report: Report) -> None:
    done = report("--knowledge", str(tmp_path / "nothing"))
    assert done.code == 3
    assert "nothing has been learned yet" in done.err
    assert "tidegate learn" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_sentence(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.write()
    (tmp_path / "file").write_text("not a folder")
    done = report("--knowledge", str(knowledge_of.folder), "--out", "file/report.html")
    assert done.code == 1
    assert done.err.startswith("tidegate: ")
    assert "cannot be written" in done.err
    assert "Traceback" not in done.err


def test_a_folder_in_place_of_a_file_is_named_and_nothing_is_left(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.write()
    work = tmp_path / "work"
    folder = work / "week"
    folder.mkdir(parents=True)
    done = report("--knowledge", str(knowledge_of.folder), "--out", "week", folder=work)
    assert done.code == 1
    assert done.err.startswith(f"tidegate: {folder.name} is a folder")
    assert list(work.rglob("*")) == [folder]


def test_report_error_names_the_requested_file(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.write()
    # Longer than file systems allow, once it is called otherwise for a moment.
    name = "x" * 245 + ".html"
    done = report("--knowledge", str(knowledge_of.folder), "--out", name)
    assert done.code == 1
    assert done.err.startswith(f"tidegate: {name} cannot be written: ")


def test_an_agreement_that_is_broken_ends_it(
    knowledge_of: KnowledgeOf, tmp_path: Path, report: Report
) -> None:
    knowledge_of.write()
    (tmp_path / "broken.toml").write_text("name = ")
    done = report("--knowledge", str(knowledge_of.folder), "--agreement", "broken.toml")
    assert done.code == 2
    assert done.err.startswith("tidegate: broken.toml: is not TOML")
    assert not (tmp_path / "report.html").exists()
