"""The leader, or a machine, dies at every step of a scale-out and a scale-in; the next ends it."""

from __future__ import annotations

import pytest

from tidegate.core.crash import MACHINE_POINTS, STEERING_POINTS
from tidegate.lab.faults.succession import SuccessionOptions, SuccessionReport, run_succession

# In the order in which a leader gets to them.
SCALE_OUT = (
    *("before-boot-row", "after-boot-row", "before-boot", "after-boot"),
    *("before-replica-added", "after-replica-added", "before-serving", "after-serving"),
)
SCALE_IN = (
    *("before-drain", "after-drain", "before-shares", "after-shares"),
    *("before-exchange-order", "after-exchange-order", "before-migrate", "after-migrate"),
    *("before-retire", "after-retire"),
)
HALT = ("before-halt-row", "after-halt-row", "before-halt", "after-halt", "after-machine-removed")


def judged(*points: str) -> SuccessionReport:
    report = run_succession(SuccessionOptions(points=points), print)
    print(report)
    assert report.client_failures == []
    assert report.verdict.examples == []
    assert report.outcome == "pass", str(report.verdict)
    assert report.left_in_store == 0
    assert report.left_behind == []
    assert report.verdict.confirmed > 200
    return report


def test_every_step_has_its_death() -> None:
    assert set(SCALE_OUT) | set(SCALE_IN) | set(HALT) == set(STEERING_POINTS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("points", [SCALE_IN, HALT, SCALE_OUT], ids=["in", "halt", "out"])
def test_what_a_leader_leaves_half_done_the_next_one_ends(points: tuple[str, ...]) -> None:
    assert set(judged(*points).died_at) == set(points)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", MACHINE_POINTS)
def test_a_scale_in_ends_though_the_machine_dies_while_it_lets_its_workers_go(point: str) -> None:
    assert judged(point).machines_died > 0
