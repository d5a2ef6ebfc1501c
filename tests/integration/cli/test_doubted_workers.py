"""Workers that will not be found are doubted as soon as they are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Script

from tidegate.cli.scaling import worker_doubts


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "QUEUE", "--worker", "nosuch:app"],
        ["scale", "QUEUE", "--set", "worker=nosuch:app"],
        ["queue", "set", "QUEUE", "worker=nosuch:app"],
    ],
)
def test_a_worker_that_is_not_found_here_is_set_with_a_warning(
    script: Script, queue: str, arguments: list[str]
) -> None:
    script("create", queue)
    said = script(*(one.replace("QUEUE", queue) for one in arguments))

    # Machines may have what is not here.
    assert said.returncode == 0, said.stderr
    (warning,) = said.stderr.decode().splitlines()
    assert warning.startswith("warning: no module 'nosuch' here: looked in ")
    assert "`tidegate worker nosuch:app` tries it" in warning
    assert script.json("scale", queue)["scaling"]["worker"] == "nosuch:app"
    taken_back = script("scale", queue, "--worker", "none")
    assert (taken_back.returncode, taken_back.stderr) == (0, b"")


def test_worker_check_finds_a_module_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = "raise AssertionError('it is run')\n"
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(bomb)
    (tmp_path / "shop" / "jobs.py").write_text(bomb)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    for found in ("shop:app", "shop.jobs:app", "json.decoder:app", "sys:app"):
        assert worker_doubts(found, "orders") is None, found
    for missing in ("shops:app", "shop.job:app", "shop.jobs.more:app"):
        assert worker_doubts(missing, "orders") is not None, missing
    assert sys.path == before
