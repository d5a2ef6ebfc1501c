"""A queue that is scaled up and down while its machines, workers and leader are killed with -9."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from waiting import LIMIT_S, eventually

from tidegate.demo.history import CheckResult
from tidegate_lab.faults.deployment import FaultInjector, deployed
from tidegate_lab.faults.scale_storm import (
    LEADER,
    VICTIMS,
    StormOptions,
    StormReport,
    planned_victims,
    run_storm,
    settings_with,
)

GOOD = StormReport(
    seed=1,
    events=12,
    ups=6,
    downs=6,
    kills_wanted=7,
    kills={"worker": 5, LEADER: 1},
    waited_for=9,
    carried_out=9,
    slowest_s=6.0,
    duration_s=60.0,
    verdict=CheckResult(put=1, confirmed=1, delivered=1, deliveries=1),
    outcome="pass",
    left_in_store=0,
    client_failures=[],
)


SEED = 18
# While the machine is busy, a process that was not killed must not count as dead.
LEASE_S = 5.0
PATIENT: dict[str, Any] = {
    "lease_s": LEASE_S,
    "wait_s": 300.0,
    "leader_s": 120.0,
    "drain_s": 300.0,
    "confirms_min": 1001,
}
# A short storm that hits each kind of victim, and a long one of which nobody knows the course.
SHORT = StormOptions(events=6, hasty=0.3, rate_per_s=75.0, seed=SEED, **PATIENT)
LONG = StormOptions(events=30, **PATIENT)


def test_the_short_storm_hits_each_kind_of_victim() -> None:
    assert set(planned_victims(SHORT, random.Random(SEED))) >= set(VICTIMS)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(500), id="short"),
        pytest.param(LONG, marks=[pytest.mark.timeout(1500), pytest.mark.only_with_all], id="long"),
    ],
)
def test_no_message_is_lost_in_a_storm_of_scale_events_and_kills(options: StormOptions) -> None:
    report = run_storm(options, print)

    print(report)
    assert report.client_failures == []
    assert report.verdict.examples == []
    assert report.verdict.outcome == "pass", str(report.verdict)
    assert report.left_in_store == 0
    assert report.events == options.events
    assert report.carried_out == report.waited_for > 2
    assert report.kills[LEADER] > 0
    assert report.verdict.confirmed > 1000
    assert report.passed


@pytest.mark.parametrize(
    "change",
    [
        {"carried_out": 8},
        {"waited_for": 0, "carried_out": 0},
        {"kills": {"worker": 6}},
        {"left_in_store": 1},
        {"client_failures": ["producer-0"]},
        {"outcome": "inconclusive"},
    ],
)
def test_a_storm_that_does_not_do_what_it_says_does_not_pass(change: dict[str, object]) -> None:
    assert GOOD.passed
    assert not msgspec.structs.replace(GOOD, **change).passed


def test_a_storm_in_which_nobody_was_to_be_killed_needs_no_kill_of_the_leader() -> None:
    assert msgspec.structs.replace(GOOD, kills_wanted=0, kills={}).passed
    assert planned_victims(StormOptions(kills=0.0), random.Random(1)) == [None] * 100


@pytest.mark.parametrize("seed", range(50))
def test_whatever_the_seed_the_leader_is_among_the_victims(seed: int) -> None:
    planned = planned_victims(StormOptions(events=5, kills=0.2), random.Random(seed))

    assert len(planned) == 5
    assert LEADER in planned


@pytest.mark.timeout(300)
def test_every_kill_of_the_leader_hits_whoever_leads_then(tmp_path: Path) -> None:
    settings = tmp_path / "tidegate.toml"
    settings.write_text(settings_with(LEASE_S))
    with deployed(nodes=2, environment={"TIDEGATE_CONFIG": str(settings)}) as deployment:
        injector = FaultInjector(deployment)
        struck_at = []

        def living_leader() -> tuple[int, str] | None:
            leader = deployment.leader()
            return None if leader is None or leader[0] in injector.leaders_killed else leader

        for _ in range(3):
            # Given somebody who leads, and is not one that we have killed
            member_id, address = eventually(living_leader, "somebody leads")
            pid = eventually(lambda address=address: deployment.member_pid(address))
            process = psutil.Process(pid)

            # When the leader is killed
            injector.strike("leader")

            # Then it was that one
            assert injector.leaders_killed[-1] == member_id
            process.wait(LIMIT_S)
            struck_at.append(address)

        # The first was started again, but by then the other one led
        assert set(struck_at[:2]) == set(deployment.addresses)
        assert len(set(injector.leaders_killed)) == 3
