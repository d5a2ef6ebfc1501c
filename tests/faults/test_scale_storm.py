"""A queue that is scaled up and down while its machines, workers and leader are killed with -9."""

from __future__ import annotations

import pytest

from tidegate.lab.faults.scale_storm import StormOptions, run_storm

pytestmark = pytest.mark.faults


@pytest.mark.timeout(300)
def test_no_message_is_lost_in_a_storm_of_scale_events_and_kills() -> None:
    report = run_storm(StormOptions(events=12), print)

    print(report)
    assert report.client_failures == []
    assert report.verdict.examples == []
    assert report.verdict.outcome == "pass", str(report.verdict)
    assert report.left_in_store == 0
    assert report.events == 12
    assert sum(report.kills.values()) > 0
    assert report.verdict.confirmed > 1000
