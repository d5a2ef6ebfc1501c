"""When a server is left out, for how long, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.laws.http.balancing import EjectionSettings, OutlierEjection, ServerState

SETTINGS = EjectionSettings(failures_to_eject=3, base_s=1.0, most_s=8.0, return_s=10.0)


def test_a_few_failures_in_a_row_eject_and_a_success_between_them_saves() -> None:
    one = OutlierEjection(SETTINGS)
    for _ in range(5):
        one.failed(0.0, "broke off")
        one.failed(0.0, "broke off")
        one.succeeded()
    assert one.standing is ServerState.HEALTHY
    for _ in range(3):
        one.failed(0.0, "broke off")
    assert (one.standing, one.share(0.0), one.why) == (ServerState.EJECTED, 0.0, "broke off")


def test_where_nobody_listens_once_is_enough() -> None:
    one = OutlierEjection(SETTINGS)
    one.refused(0.0, "refused")
    assert one.standing is ServerState.EJECTED


def test_slow_server_is_not_ejected_beyond_the_limit() -> None:
    one = OutlierEjection(SETTINGS)
    for _ in range(10):
        one.failed(0.0, "slow", may_eject=False)
        one.check_failed(0.0, "slow", may_eject=False)
    assert one.standing is ServerState.HEALTHY
    # As soon as there is room for it outside, what it has shown counts.
    one.check_failed(0.0, "slow")
    assert one.standing is ServerState.EJECTED


def test_ejected_server_returns_with_growing_weight() -> None:
    one = OutlierEjection(SETTINGS)
    one.refused(0.0, "refused")
    one.tick(0.9)
    assert one.share(0.9) == 0.0
    one.tick(1.0)
    assert one.standing is ServerState.RETURNING
    shares = [one.share(1.0 + elapsed) for elapsed in (0.0, 5.0, 10.0)]
    assert shares == pytest.approx([0.1, 0.55, 1.0])
    one.tick(11.0)
    assert (one.standing, one.why) == (ServerState.HEALTHY, "")


def test_ejection_doubles_after_a_failure_while_returning() -> None:
    one = OutlierEjection(SETTINGS)
    now = 0.0
    waits = []
    one.refused(now, "refused")
    for _ in range(6):
        left = now
        while one.standing is ServerState.EJECTED:
            now += 0.25
            one.tick(now)
        waits.append(now - left)
        one.failed(now, "broke off")
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_checked_server_returns_only_after_a_passed_check() -> None:
    one = OutlierEjection(SETTINGS, checked=True)
    one.check_failed(0.0, "503")
    assert one.standing is ServerState.HEALTHY
    one.check_failed(0.0, "503")
    assert one.standing is ServerState.EJECTED
    one.tick(100.0)
    assert one.standing is ServerState.EJECTED
    one.check_passed(101.0)
    assert one.standing is ServerState.RETURNING
    one.check_failed(102.0, "503")
    one.check_failed(102.0, "503")
    assert one.standing is ServerState.EJECTED


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "refused", "passed", "check failed", "succeeded", "tick"]),
        st.floats(0.0, 5.0),
    ),
    max_size=60,
)


@given(events=_EVENTS, checked=st.booleans())
def test_whatever_happens_its_share_says_where_it_stands(
    events: list[tuple[str, float]], checked: bool
) -> None:
    one = OutlierEjection(SETTINGS, checked=checked)
    now = 0.0
    for event, elapsed_s in events:
        now += elapsed_s
        if event == "failed":
            one.failed(now, "failed")
        elif event == "refused":
            one.refused(now, "refused")
        elif event == "passed":
            one.check_passed(now)
        elif event == "check failed":
            one.check_failed(now, "failed")
        elif event == "succeeded":
            one.succeeded()
        else:
            one.tick(now)
        share = one.share(now)
        assert 0.0 <= share <= 1.0
        assert (share == 0.0) == (one.standing is ServerState.EJECTED)
    # Nobody is out for ever who is well again.
    for _ in range(3):
        now += SETTINGS.most_s + SETTINGS.return_s
        one.check_passed(now)
    assert one.standing is ServerState.HEALTHY
