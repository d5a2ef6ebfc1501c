"""Real processes, killed with -9 at random moments under load: nothing confirmed is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidegate.demo.history import CheckResult
from tidegate_lab.faults.kills import KillOptions, KillReport, run_kills


def assert_nothing_was_lost(report: KillReport) -> None:
    print(report.as_json())
    verdict = report.verdict
    assert report.client_failures == []
    assert verdict.examples == []
    assert (verdict.lost, verdict.unflagged, verdict.out_of_order) == (0, 0, 0)
    assert verdict.outcome == "pass", str(verdict)
    assert verdict.confirmed > 1000
    # The store keeps nothing that everybody is done with.
    assert report.left_in_store == 0
    assert sum(report.kills.values()) == report.kills_wanted
    assert report.passed


# The kinds in their order come from the seed: 5 nodes, 3 times PostgreSQL, 2 times connections.
SEED = 7
PATIENT: dict[str, Any] = {"drain_s": 300.0, "confirms_min": 1001}
SHORT = KillOptions(kills=10, rate_per_s=100.0, pause_s_max=0.5, seed=SEED, **PATIENT)
LONG = KillOptions(kills=200, **PATIENT)
RELAYING = msgspec.structs.replace(SHORT, kills=4, what="node", nodes=2)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(500), id="short"),
        pytest.param(LONG, marks=[pytest.mark.timeout(1500), pytest.mark.only_with_all], id="long"),
    ],
)
def test_every_confirmed_message_survives_kills_of_node_and_postgres(options: KillOptions) -> None:
    report = run_kills(options, print)

    assert_nothing_was_lost(report)
    # The seed decides what is killed: of each kind some.
    assert set(report.kills) == {"node", "postgres", "backends"}
    assert sum(report.kills.values()) == options.kills


@pytest.mark.timeout(500)
def test_every_confirmed_message_survives_kills_of_two_nodes_that_relay() -> None:
    report = run_kills(RELAYING, print)

    assert_nothing_was_lost(report)


@pytest.mark.parametrize(
    "change",
    [
        {"kills": {"node": 11, "postgres": 8}},
        {"left_in_store": 1},
        {"left_in_store": None},
        {"client_failures": ["producer-0"]},
        {"outcome": "inconclusive"},
    ],
)
def test_a_run_that_does_not_do_what_it_says_does_not_pass(change: dict[str, object]) -> None:
    good = KillReport(
        seed=1,
        kills_wanted=20,
        kills={"node": 12, "postgres": 8},
        duration_s=60.0,
        recovery_s_median=0.5,
        recovery_s_max=2.0,
        verdict=CheckResult(put=1, confirmed=1, delivered=1, deliveries=1),
        outcome="pass",
        left_in_store=0,
        client_failures=[],
    )

    assert good.passed
    assert not msgspec.structs.replace(good, **change).passed
