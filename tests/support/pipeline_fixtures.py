"""Lakes with a few rows, and commands that must end before they start Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from lake_of import LakeOf
from refused_command import RefusedCommand, Said

from tidegate.cli import app
from tidegate.pipeline import learn, session


@pytest.fixture
def lake_of(tmp_path: Path) -> LakeOf:
    """An empty lake to put rows in."""
    return LakeOf(tmp_path / "lake")


@pytest.fixture
def refused_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RefusedCommand:
    """`tidegate` in this process and in `tmp_path`; whoever starts Spark there fails."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    for place in (session, learn):
        monkeypatch.setattr(place, "spark_session", None)

    def run(*words: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            app.run_app()
        printed = capsys.readouterr()
        return Said(ended.value.code, printed.out, printed.err)

    return run
