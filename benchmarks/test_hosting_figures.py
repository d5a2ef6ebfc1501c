"""A hosted application when an instance is killed, and when more come than it can answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from http.client import OK, SERVICE_UNAVAILABLE
from statistics import quantiles

import pytest
from figures import Figure
from hosted import AGREED_SECOND, NARROW, TOO_MANY, TOO_MANY_PAUSE_S, Answer, Hosted, Load
from waiting import eventually

MEASURED = 200


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hosted]:
    running = Hosted(*NARROW, agreement=AGREED_SECOND)
    yield running
    running.end()


def test_how_soon_a_spare_answers_in_the_place_of_a_killed_instance(
    hosted: Hosted, figure: Figure
) -> None:
    def pids() -> set[str]:
        return {one.body.split()[1] for one in load.answers if one.status == OK}

    eventually(lambda: hosted.ready(spare=True), "there is a spare")
    with Load(hosted.address) as load:
        served = eventually(lambda: found if len(found := pids()) == 2 else None, "two answer")
        killed_at = time.monotonic()
        os.kill(int(min(served)), signal.SIGKILL)
        eventually(lambda: pids() - served, "the spare answers")
        figure("a spare answers after a kill", time.monotonic() - killed_at, "s", "below 2 s")


def test_how_long_those_wait_who_are_let_in_while_others_are_refused(
    hosted: Hosted, figure: Figure
) -> None:
    def answered(status: int) -> list[Answer]:
        return [one for one in load.answers if one.status == status]

    with Load(hosted.address, TOO_MANY, pause_s=TOO_MANY_PAUSE_S) as load:
        eventually(lambda: answered(SERVICE_UNAVAILABLE), "some are refused")
        refused_at = answered(SERVICE_UNAVAILABLE)[0].asked_at

        def kept() -> list[float]:
            return [one.took_s for one in answered(OK) if one.asked_at > refused_at]

        eventually(lambda: len(kept()) > MEASURED, "others are answered")
    p95_s = quantiles(kept(), n=20)[-1]
    figure("95 % of those let in under overload within", p95_s, "s", "below 1 s, as agreed")
