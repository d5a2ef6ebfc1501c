"""A hosted application when an instance dies, its door hangs, or more come than it can answer.

One service for all: two instances or three, and a spare. Another program has its node's usual port.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Iterable, Iterator
from http.client import OK, SERVICE_UNAVAILABLE
from pathlib import Path
from typing import Any

import pytest
from hosted import AGREED_SECOND, NARROW, TOO_MANY, TOO_MANY_PAUSE_S, Answer, Hosted, Load, ask
from waiting import eventually

ENOUGH = 40


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alerts, one in a line."""
    return tmp_path_factory.mktemp("alerts") / "heard"


@pytest.fixture(scope="module")
def hosted(heard: Path) -> Iterator[Hosted]:
    script = f"cat >> {shlex.quote(str(heard))}; echo >> {shlex.quote(str(heard))}"
    command = json.dumps(["/bin/sh", "-c", script])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Hosted(
            *NARROW,
            agreement=AGREED_SECOND,
            settings=f"[node]\nport = {taken.getsockname()[1]}\n[alerts]\ncommand = {command}\n",
            node_port=None,
        )
        yield running
        assert running.end() == 0
        eventually(lambda: not running.left_behind(), "everything ends with it")


def pids(answers: Iterable[Answer]) -> set[int]:
    return {int(one.body.split()[1]) for one in answers if one.status == OK}


def test_a_node_whose_usual_port_is_taken_takes_another_and_says_so(hosted: Hosted) -> None:
    told = hosted.story()
    (usual,) = re.findall(r"the node takes a free port: another program has (\d+)", told)
    assert re.findall(r"node at tidegate://127\.0\.0\.1:(\d+)", told) != [usual]


def test_a_spare_stands_in_for_a_killed_instance_and_is_itself_replaced(
    hosted: Hosted,
) -> None:
    (spare,) = eventually(lambda: hosted.ready(spare=True), "there is a spare")
    with Load(hosted.address) as load:
        eventually(lambda: len(pids(load.answers)) == 2, "two answer")
        served = pids(load.answers)
        os.kill(min(served), signal.SIGKILL)
        eventually(lambda: pids(load.answers) - served, "the spare answers")
        there = len(load.answers)
        eventually(lambda: len(load.answers) > there + ENOUGH, "load goes on")

    assert load.failed == []
    eventually(lambda: spare in hosted.ready(spare=False), "the spare serves")
    eventually(lambda: hosted.ready(spare=True) - {spare}, "there is another spare")


def told(heard: Path, kind: str, words: str = "") -> list[dict[str, Any]]:
    # What is being written is not there yet.
    lines = heard.read_text().split("\n")[:-1] if heard.exists() else []
    alerts = [json.loads(line) for line in lines if line]
    return [one for one in alerts if one["kind"] == kind and words in one["summary"]]


def test_a_door_that_hangs_is_told_of_and_so_is_its_return(hosted: Hosted, heard: Path) -> None:
    """The leader asks the door from outside, hears nothing, and tells people once.

    On a busy computer the probe may be refused before that, while instances begin to answer: this
    is another disagreement, which ends by itself. Whether the last word of the door is still fresh
    when the probe has failed often enough depends on the computer, so one of two summaries comes:
    "no door reports, and the probe fails" or "doors report no trouble, and the probe fails".
    """

    def disagreements() -> list[dict[str, Any]]:
        return told(heard, "disagreement")

    def ends() -> list[dict[str, Any]]:
        return told(heard, "over", "the same again")

    (door,) = hosted.door_pids().values()
    # Who has reported twice is known to the leader, and by then a window of it is judged.
    eventually(lambda: hosted.run("sla", "shop", "--json").returncode == 0, "the door is known")
    eventually(lambda: len(disagreements()) == len(ends()), "nothing is in dispute")
    before = len(ends())
    os.kill(door, signal.SIGSTOP)
    try:
        alert = eventually(lambda: disagreements()[before:], "the alert comes")[0]
    finally:
        os.kill(door, signal.SIGCONT)

    assert alert["service"] == "shop"
    assert "and the probe fails" in alert["summary"]
    assert f"(asked at {hosted.address})" in alert["summary"]
    over = eventually(lambda: ends()[before:], "it is over")[0]
    assert over["at"] > alert["at"]
    assert [one for one in disagreements()[before:] if one["at"] < over["at"]] == [alert]


def test_overload_is_refused_while_all_allowed_instances_serve(hosted: Hosted) -> None:
    """How fast the others are answered meanwhile is for benchmarks/test_hosting_figures.py."""

    def answered(status: int) -> list[Answer]:
        return [one for one in load.answers if one.status == status]

    with Load(hosted.address, TOO_MANY, pause_s=TOO_MANY_PAUSE_S) as load:
        refused_at = eventually(
            lambda: found[0].asked_at if (found := answered(SERVICE_UNAVAILABLE)) else None,
            "some are refused",
        )
        eventually(
            lambda: sum(one.asked_at > refused_at for one in answered(OK)) > ENOUGH,
            "others are answered",
        )
        eventually(lambda: len(hosted.ready(spare=False)) == 3, "all serve that may")
        eventually(
            lambda: "others are refused" in str(hosted.service()["detail"]), "people are told"
        )

    assert {one.status for one in load.answers} == {OK, SERVICE_UNAVAILABLE}
    eventually(lambda: hosted.service()["detail"] is None, "nobody is refused any more")
    assert ask(hosted.address).status == OK
