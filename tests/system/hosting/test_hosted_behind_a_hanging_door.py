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
    """On a busy computer the probe may be refused before, while instances begin to answer.

    That is another disagreement, "doors report no trouble", and it ends by itself.
    """
    (door,) = hosted.door_pids().values()
    # Who has reported twice is known to the leader, and by then a window of it is judged.
    eventually(lambda: hosted.run("sla", "shop", "--json").returncode == 0, "the door is known")
    eventually(
        lambda: len(agreed_again(heard)) == len(told(heard, "disagreement")), "all is agreed"
    )
    before = len(agreed_again(heard))
    os.kill(door, signal.SIGSTOP)
    try:
        (alert,) = eventually(lambda: silent_doors(heard), "the alert comes")
    finally:
        os.kill(door, signal.SIGCONT)

    assert alert["service"] == "shop"
    assert f"(asked at {hosted.address})" in alert["summary"]
    over = eventually(lambda: agreed_again(heard)[before:], "it is over")[0]
    assert over["at"] > alert["at"]
    assert len(silent_doors(heard)) == 1


def silent_doors(heard: Path) -> list[dict[str, Any]]:
    words = "no door reports, and the probe fails"
    return [one for one in told(heard, "disagreement") if words in one["summary"]]


def agreed_again(heard: Path) -> list[dict[str, Any]]:
    return [one for one in told(heard, "over") if "the same again" in one["summary"]]
