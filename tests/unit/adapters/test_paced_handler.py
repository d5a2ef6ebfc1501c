"""A handler that only takes its time takes as long as it says, whatever timers do."""

from __future__ import annotations

import math

import pytest

from tidegate.engines.probe import LATE_S_MAX, PacedHandler

HANDLER_S = 0.001


class Timers:
    """A clock and sleeps that are late: the same each time, and nobody really waits."""

    def __init__(self, late_s: float) -> None:
        self.now = 100.0
        self.late_s = late_s

    async def sleep(self, seconds: float) -> None:
        # As uvloop has it: whole milliseconds.
        self.now += round(1e3 * seconds) / 1e3 + self.late_s

    def handler(self) -> PacedHandler:
        return PacedHandler(HANDLER_S, monotonic=lambda: self.now, sleep=self.sleep)

    def turn(self, handler: PacedHandler) -> None:
        with pytest.raises(StopIteration):
            handler.turn().send(None)


@pytest.fixture(params=[0.0, 0.0002, 0.0007, 0.003])
def timers(request: pytest.FixtureRequest) -> Timers:
    return Timers(request.param)


def test_a_busy_handler_takes_its_time_on_average(timers: Timers) -> None:
    handler = timers.handler()
    began_at = timers.now

    for _ in range(1000):
        timers.turn(handler)

    # Late timers cannot be quicker than they are late.
    assert timers.now - began_at == pytest.approx(max(1.0, 1000 * timers.late_s), abs=0.01)


def test_paced_handler_keeps_its_mean_time_between_idle_periods(timers: Timers) -> None:
    handler, at_work_s = timers.handler(), 0.0

    for _ in range(1000):
        timers.now += 0.005
        began_at = timers.now
        timers.turn(handler)
        at_work_s += timers.now - began_at

    assert at_work_s == pytest.approx(max(1.0, 1000 * timers.late_s), rel=0.05)


def test_a_machine_that_stood_still_is_not_made_up_for(timers: Timers) -> None:
    handler = timers.handler()
    usual_s, timers.late_s = timers.late_s, 5.0
    timers.turn(handler)
    timers.late_s = usual_s
    began_at = timers.now

    for _ in range(100):
        timers.turn(handler)

    least_s = 100 * max(HANDLER_S, usual_s) - LATE_S_MAX
    assert timers.now - began_at >= math.nextafter(least_s, 0.0) - 1e-6
