"""`tidegate up` where the console is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.settings import Settings
from tidegate.cli.wiring import LocalCluster
from tidegate.fleet import processes


def test_without_its_extra_up_says_how_to_get_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda _: None)

    LocalCluster(Settings(), tmp_path).start_console(7411, None)

    assert capsys.readouterr().err == "no console: pip install 'tidegate[console]'\n"
