"""A door that hangs, asked from outside by its leader: people are told, also when it is over."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted import Hosted
from waiting import eventually


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    """Alerts, one in a line."""
    return tmp_path / "heard"


@pytest.fixture
def hosted(heard: Path) -> Iterator[Hosted]:
    script = f"cat >> {shlex.quote(str(heard))}; echo >> {shlex.quote(str(heard))}"
    command = json.dumps(["/bin/sh", "-c", script])
    running = Hosted(settings=f"[alerts]\ncommand = {command}\n")
    yield running
    assert running.end() == 0


def told(heard: Path, kind: str) -> list[dict[str, Any]]:
    # What is being written is not there yet.
    lines = heard.read_text().split("\n")[:-1] if heard.exists() else []
    alerts = [json.loads(line) for line in lines if line]
    return [one for one in alerts if one["kind"] == kind]


def test_a_door_that_hangs_is_told_of_and_so_is_its_return(hosted: Hosted, heard: Path) -> None:
    (door,) = hosted.door_pids().values()
    # Who has reported twice is known to the leader, and by then a window of it is judged.
    eventually(lambda: hosted.run("sla", "shop", "--json").returncode == 0, "the door is known")
    os.kill(door, signal.SIGSTOP)
    try:
        (alert,) = eventually(lambda: told(heard, "disagreement"), "the alert comes")
    finally:
        os.kill(door, signal.SIGCONT)

    assert alert["service"] == "shop"
    assert "no door reports, and the probe fails" in alert["summary"]
    assert f"(asked at {hosted.address})" in alert["summary"]
    (over,) = eventually(
        lambda: [one for one in told(heard, "over") if "the same again" in one["summary"]],
        "it is over",
    )
    assert over["at"] > alert["at"]
    assert len(told(heard, "disagreement")) == 1
