"""The benchmark of logical queues measures pairs on a real node."""

from __future__ import annotations

import io

from rich.console import Console

from tidegate_lab.bench.queue import AliasOptions, render_alias, run_alias


def test_a_quick_run_measures_both_ways() -> None:
    said: list[str] = []
    report = run_alias(AliasOptions.quick(), said.append)

    out = io.StringIO()
    render_alias(report, Console(file=out, width=100))
    assert (report.pairs, len(said), report.messages_per_run) == (2, 2, 5_000)
    assert all(through > 0 and direct > 0 for through, direct in report.runs)
    assert "through the alias" in out.getvalue()
