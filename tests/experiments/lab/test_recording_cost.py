"""The benchmark of recording measures pairs on real nodes."""

from __future__ import annotations

import io

from rich.console import Console

from tidegate_lab.bench.queue import RecordingOptions, render_recording, run_recording


def test_recording_cost_measures_two_real_nodes_in_turn() -> None:
    said: list[str] = []
    report = run_recording(RecordingOptions.quick(), said.append)

    assert report.pairs == len(report.runs) == 2
    assert min(run.messages_per_s for pair in report.runs for run in pair) > 0
    assert [line.startswith("pair") for line in said] == [False, True, True]
    page = io.StringIO()
    render_recording(report, Console(file=page, width=120))
    assert "upper 95 % bound" in page.getvalue()
