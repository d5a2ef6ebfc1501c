"""The leader, or a machine, dies at every step of a scale-out and a scale-in; the next ends it."""

from __future__ import annotations

import pytest

from tidegate.core.runtime import MACHINE_POINTS, STEERING_POINTS
from tidegate_lab.faults.succession import SuccessionOptions, SuccessionReport, run_succession

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
    report = run_succession(SuccessionOptions(points=points, drain_s=300.0), print)
    print(report)
    assert report.client_failures == []
    assert report.verdict.examples == []
    assert report.outcome == "pass", str(report.verdict)
    assert report.left_in_store == 0
    assert report.left_behind == []
    assert report.verdict.confirmed > 200
    return report


# When the leaders have died, machines do, while they let their workers go.
EVERY_STEP = {
    "in": (SCALE_IN, "before-worker-told"),
    "halt": (HALT, "after-worker-told"),
    "out": (SCALE_OUT, "after-worker-gone"),
}
# One step of each action: boot, add a replica, drain, migrate clients, retire, halt.
IN_BRIEF = (
    *("after-boot-row", "after-replica-added"),
    *("after-shares", "before-migrate", "before-retire", "after-halt-row"),
)
RUNS = {"in brief": (IN_BRIEF, "after-worker-told"), **EVERY_STEP}


def test_every_step_has_its_death() -> None:
    of_leaders, of_machines = zip(*EVERY_STEP.values(), strict=True)
    assert sorted(point for points in of_leaders for point in points) == sorted(STEERING_POINTS)
    assert sorted(of_machines) == sorted(MACHINE_POINTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "run",
    ["in brief", *(pytest.param(run, marks=pytest.mark.only_with_all) for run in EVERY_STEP)],
)
def test_next_leader_completes_what_a_killed_one_began(run: str) -> None:
    of_leaders, of_machines = RUNS[run]

    report = judged(*of_leaders, of_machines)

    assert set(report.died_at) == set(of_leaders)
    assert report.machines_died > 0
