"""The bar of recording is about a bound that says how sure it is."""

from __future__ import annotations

import pytest

from tidegate_lab.bench.queue import RecordingRun, build_recording_report


def test_the_bar_is_on_the_upper_end_of_the_interval() -> None:
    without = RecordingRun(100_000.0, 1.0)
    costs = [0.00, 0.01] * 10
    report = build_recording_report(
        [(RecordingRun(100_000.0 * (1 - c), 1.0 + c), without) for c in costs], 1000, 0.0
    )

    assert report.cost.mean == pytest.approx(0.005)
    # Twenty values half a percent from their mean: Student's half width is 0.24 %.
    assert report.bars[0].figure == pytest.approx(0.74, abs=0.01)
    assert report.met
    assert report.cpu_cost.mean == pytest.approx(0.005)

    noisy = [(RecordingRun(100_000.0 * (1 + c), 1.0), without) for c in (-0.2, 0.2) * 5]
    assert not build_recording_report(noisy, 1000, 0.0).met

    # However cheap, a few pairs show nothing.
    few = build_recording_report([(without, without)] * 9, 1000, 0.0)
    assert few.bars[0].figure is None
    assert not few.met
