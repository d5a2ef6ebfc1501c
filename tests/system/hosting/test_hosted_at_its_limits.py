"""An application that is hosted, when an instance is gone, and when more come than it can answer.

One service for both: two instances or three, and a spare; its node's usual port is somebody else's.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from http.client import OK, SERVICE_UNAVAILABLE
from statistics import quantiles
from typing import Any

import pytest
from hosted import Answer, Hosted, Load, ask
from waiting import eventually

ENOUGH = 40
BREACH_S = 1.0
AGREEMENT = f"""\
name = "shop"
http = "shop"
window = "2s"
replicas = {{ min = 2, max = 3 }}
[metrics.response_p95]
breach = "{BREACH_S:g}s"
"""
# Two at a time, 0.2 s each: three instances answer 30/s. So many clients, who pause between two
# requests, would have to wait for more than a second and a half.
CLIENTS, PAUSE_S = 60, 0.3
# From an instance that is killed to the spare that answers in its place.
STANDS_IN_S_MAX = 2.0


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hosted]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Hosted(
            *("--spares", "1", "--concurrency", "2", "--env", "SHOP_SERVICE_S=0.2"),
            agreement=AGREEMENT,
            settings=f"[node]\nport = {taken.getsockname()[1]}\n",
            node_port=None,
        )
        yield running
        assert running.end() == 0
        eventually(lambda: not running.left_behind(), "everything ends with it")


def ready(hosted: Hosted, *, spare: bool) -> set[int]:
    """Instances that answer, those in reserve or the others."""
    found: list[dict[str, Any]] = hosted.service()["instances"]
    return {
        one["instance_id"]
        for one in found
        if one["state"] == "ready" and (one["weight"] == 0.0) == spare
    }


def pids(answers: Iterable[Answer]) -> set[int]:
    return {int(one.body.split()[1]) for one in answers if one.status == OK}


def test_a_node_whose_usual_port_is_taken_takes_another_and_says_so(hosted: Hosted) -> None:
    told = hosted.story()
    (usual,) = re.findall(r"the node takes a free port: another program has (\d+)", told)
    assert re.findall(r"node at tidegate://127\.0\.0\.1:(\d+)", told) != [usual]


def test_a_spare_stands_in_for_a_killed_instance_at_once_and_is_itself_replaced(
    hosted: Hosted,
) -> None:
    (spare,) = eventually(lambda: ready(hosted, spare=True), "there is a spare")
    with Load(hosted.address) as load:
        eventually(lambda: len(pids(load.answers)) == 2, "two answer")
        served = pids(load.answers)
        os.kill(min(served), signal.SIGKILL)
        killed_at = time.monotonic()
        eventually(lambda: pids(load.answers) - served, "the spare answers")
        stood_in_s = time.monotonic() - killed_at
        there = len(load.answers)
        eventually(lambda: len(load.answers) > there + ENOUGH, "load goes on")

    assert load.failed == []
    assert stood_in_s <= STANDS_IN_S_MAX
    assert spare in ready(hosted, spare=False)
    eventually(lambda: ready(hosted, spare=True) - {spare}, "there is another spare")


def test_what_is_too_much_is_refused_so_that_what_is_let_in_is_kept(hosted: Hosted) -> None:
    def answered(status: int) -> list[Answer]:
        return [one for one in load.answers if one.status == status]

    with Load(hosted.address, CLIENTS, pause_s=PAUSE_S) as load:
        refused_at = eventually(
            lambda: found[0].asked_at if (found := answered(SERVICE_UNAVAILABLE)) else None,
            "some are refused",
        )
        kept = eventually(
            lambda: (
                found
                if len(found := [one for one in answered(OK) if one.asked_at > refused_at])
                > 2 * ENOUGH
                else None
            ),
            "others are answered",
        )
        eventually(lambda: len(ready(hosted, spare=False)) == 3, "all serve that may")
        detail = hosted.service()["detail"]

    assert {one.status for one in load.answers} == {OK, SERVICE_UNAVAILABLE}
    assert quantiles((one.took_s for one in kept), n=20)[-1] <= BREACH_S
    assert "others are refused" in str(detail)
    eventually(lambda: hosted.service()["detail"] is None, "nobody is refused any more")
    assert ask(hosted.address).status == OK
