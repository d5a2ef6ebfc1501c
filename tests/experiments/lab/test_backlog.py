"""A queue with a backlog stays first in, first out, and keeps count."""

from __future__ import annotations

import pytest
from rich.console import Console

from tidegate_lab.bench.backlog import BacklogOptions, render_backlog, run_backlog
from tidegate_lab.loadgen.processes import Child, ChildFailed


def test_a_backlog_is_loaded_eaten_from_its_front_and_counted() -> None:
    lines: list[str] = []

    report = run_backlog(BacklogOptions(backlogs=(6000,), rounds=1, messages=4000), lines.append)

    assert set(report.ratio) == {"6000"}
    assert report.throughput["6000"] > 0
    assert 10 < report.memory_mib["6000"] < report.memory_bound_mib + 150
    assert len(report.bars) == 2
    assert any("6,000 messages wait" in line for line in lines)
    console = Console(record=True, width=120)
    render_backlog(report, console)
    assert "node memory" in console.export_text()


def test_a_child_that_fails_says_why() -> None:
    with (
        Child("tidegate_lab.bench.backlog", ["no json"]) as child,
        pytest.raises(ChildFailed, match="malformed"),
    ):
        child.hear(str, 20.0)
