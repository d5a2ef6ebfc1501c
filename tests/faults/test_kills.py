"""Real processes, killed with -9 at random moments under load: nothing confirmed is lost."""

from __future__ import annotations

import pytest

from tidegate.lab.faults.kills import KillOptions, KillReport, run_kills

pytestmark = pytest.mark.faults


def assert_nothing_was_lost(report: KillReport) -> None:
    print(report.as_json())
    verdict = report.verdict
    assert report.client_failures == []
    assert verdict.examples == []
    assert (verdict.lost, verdict.unflagged, verdict.out_of_order) == (0, 0, 0)
    assert verdict.outcome == "pass", str(verdict)
    assert verdict.confirmed > 1000


@pytest.mark.timeout(240)
def test_every_confirmed_message_survives_kills_of_node_and_postgres() -> None:
    report = run_kills(KillOptions(kills=20, what="both", pause_s_max=1.0), print)

    assert_nothing_was_lost(report)
    assert sum(report.kills.values()) == 20
    # The store keeps nothing that everybody is done with.
    assert report.left_in_store == 0


@pytest.mark.timeout(240)
def test_every_confirmed_message_survives_kills_of_two_nodes_that_relay() -> None:
    report = run_kills(KillOptions(kills=6, what="node", nodes=2, pause_s_max=1.0), print)

    assert_nothing_was_lost(report)
