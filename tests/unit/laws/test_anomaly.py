"""The law of anomalies, window by window."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidegate.laws.forecasting import (
    AnomalyChange,
    AnomalyResult,
    AnomalySettings,
    SeriesHistory,
    judge_window,
)

HOW = AnomalySettings(absolute=1.0, windows=10, windows_min=4)


def judged(values: Iterable[float], how: AnomalySettings = HOW) -> list[AnomalyResult]:
    track, found = SeriesHistory(), []
    for number, value in enumerate(values):
        found.append(judge_window(track, 60.0 * number, value, how))
        track = found[-1].track
    return found


def changes(values: Iterable[float]) -> list[tuple[int, AnomalyChange]]:
    return [(number, one.change) for number, one in enumerate(judged(values)) if one.change]


def test_a_steady_figure_is_never_odd_and_nothing_is_said_of_the_first_windows() -> None:
    assert changes([100.0, 104.0, 97.0, 101.0] * 10) == []
    assert changes([1.0, 1000.0, 1.0, 1000.0]) == []


def test_an_anomaly_begins_with_its_second_odd_window_and_ends_with_the_second_calm_one() -> None:
    found = judged([100.0] * 5 + [200.0, 210.0, 205.0] + [100.0, 101.0])

    began, ended = found[6], found[9]
    assert began.change is AnomalyChange.BEGAN
    # It began when it was first seen, and says what was expected.
    assert (began.since_s, began.expected, began.seen) == (300.0, 100.0, 205.0)
    # The floor of a tenth: (210 − 100) / (0.1 · 100).
    assert began.score == pytest.approx(11.0)
    assert (ended.change, ended.since_s, ended.seen) == (AnomalyChange.ENDED, 300.0, 100.5)
    assert [one.change for one in found].count(None) == 8


def test_a_blip_is_none() -> None:
    assert changes([100.0] * 5 + [500.0] + [100.0] * 5) == []
    # Nor is one up and one down.
    assert changes([100.0] * 5 + [500.0, 0.0, 500.0, 0.0]) == []


def test_swing_around_the_threshold_is_one_anomaly() -> None:
    # Scores 6 and 4, between leave and enter.
    assert changes([100.0] * 5 + [160.0, 160.0] + [140.0, 160.0] * 3) == [(6, AnomalyChange.BEGAN)]


def test_expected_value_changes_only_after_an_anomaly_settled() -> None:
    found = judged([100.0] * 5 + [300.0] * 12)

    assert [(n, one.change) for n, one in enumerate(found) if one.change] == [
        (6, AnomalyChange.BEGAN),
        (14, AnomalyChange.SETTLED),
    ]
    assert found[13].expected == 100.0
    assert found[15].expected == 300.0


def test_noise_widens_what_is_normal() -> None:
    calm = judged([100.0, 100.0, 101.0, 99.0, 100.0, 160.0])[-1]
    noisy = judged([100.0, 60.0, 140.0, 80.0, 120.0, 160.0])[-1]

    assert calm.score == pytest.approx(6.0)
    # MAD 20, so 60 / (1.4826 · 20).
    assert noisy.score == pytest.approx(60 / (1.4826 * 20))
