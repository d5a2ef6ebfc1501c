"""Each example runs with one command, tells its story to the end, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import EXAMPLES
from reader import END_S_MAX, environment_of_a_reader, processes_in
from waiting import eventually

LAST_WORDS = {
    "orders": "All 300 orders were shipped, each once.",
    "thumbnails": "all 240 thumbnails are done",
    "web_app": " 0 failed.",
    "spark_job": "every sale was in exactly one batch.",
}


def test_every_example_is_run_and_has_its_line() -> None:
    there = {path.parent.name for path in EXAMPLES.glob("*/run.py")}
    assert there == set(LAST_WORDS)
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"`python examples/{name}/run.py`" in page for name in there)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "orders",
        *(
            pytest.param(name, marks=pytest.mark.only_with_all)
            for name in LAST_WORDS
            if name != "orders"
        ),
    ],
)
def test_an_example_tells_its_story_and_leaves_nothing_behind(name: str, folder: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "run.py")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment_of_a_reader() | {"TMPDIR": str(folder)},
        check=False,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert LAST_WORDS[name] in finished.stdout
    eventually(lambda: not processes_in(folder), "nothing is left running", END_S_MAX)
    assert list(folder.iterdir()) == []
