"""An application that is hosted, when an instance is gone, and when more come than it can answer.

One service for both: two instances or three, and a spare; its node's usual port is somebody else's.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterable, Iterator
from http.client import OK, SERVICE_UNAVAILABLE

import pytest
from hosted import AGREED_SECOND, NARROW, TOO_MANY, TOO_MANY_PAUSE_S, Answer, Hosted, Load, ask
from waiting import eventually

ENOUGH = 40


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hosted]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Hosted(
            *NARROW,
            agreement=AGREED_SECOND,
            settings=f"[node]\nport = {taken.getsockname()[1]}\n",
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


def test_what_is_too_much_is_refused_and_all_serve_that_may(hosted: Hosted) -> None:
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
