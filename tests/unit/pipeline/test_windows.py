"""How wide windows are."""

from __future__ import annotations

import pytest

from tidegate.pipeline.jobs import width_for

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("span_s", "width_s"),
    [
        (0.0, 2.0),
        (20.0, 2.0),
        (10 * MINUTE_S, 5.0),
        (HOUR_S, 30.0),
        (DAY_S, 900.0),
        (7 * DAY_S, HOUR_S),
        (100 * 365 * DAY_S, DAY_S),
    ],
)
def test_windows_are_wide_enough_to_be_looked_at(span_s: float, width_s: float) -> None:
    assert width_for(span_s) == width_s
