"""Which hours go: those beyond the retention, by a clock that is believed only so far."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.telemetry.lake import HOUR_S, expired_hours

DAY_HOURS = 24
NOW_HOUR = 500_000
RETENTION_S = 30 * DAY_HOURS * HOUR_S


@given(st.integers(2, 60 * DAY_HOURS), st.integers(1, 40 * DAY_HOURS), st.integers(0, HOUR_S - 1))
def test_continuous_recording_keeps_exactly_the_retention(
    recorded: int, kept: int, second: int
) -> None:
    hours = range(NOW_HOUR - recorded + 1, NOW_HOUR + 1)
    now_s = NOW_HOUR * HOUR_S + second
    expected = {hour for hour in hours if (hour + 1 + kept) * HOUR_S < now_s}
    if recorded >= max(min(DAY_HOURS, kept), 2):
        assert expired_hours(hours, kept * HOUR_S, now_s) == expected
    else:
        assert not expected


@given(st.integers(31 * DAY_HOURS, 100 * 365 * DAY_HOURS), st.integers(0, DAY_HOURS - 1))
def test_a_jump_ahead_is_not_believed_before_a_day_was_recorded(jump: int, ahead: int) -> None:
    history = set(range(NOW_HOUR - 20 * DAY_HOURS, NOW_HOUR))
    later = set(range(NOW_HOUR + jump, NOW_HOUR + jump + ahead))
    now_s = (NOW_HOUR + jump + ahead) * HOUR_S
    assert expired_hours(history | later, RETENTION_S, now_s) == set()
    # And when the clock is right again, what it wrote meanwhile changes nothing.
    assert expired_hours(history | later, RETENTION_S, NOW_HOUR * HOUR_S) == set()


def test_without_a_retention_everything_stays() -> None:
    assert expired_hours(range(1000), 0.0, NOW_HOUR * HOUR_S) == set()
