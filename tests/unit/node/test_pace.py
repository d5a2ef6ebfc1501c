"""A stated limit: so many a second, neither more nor, when messages wait, fewer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.context import BURST_S, MADE_UP_S, RateLimiter

PER_S = 100.0


def sent(pace: RateLimiter, now: float) -> int:
    """Everything that may go goes, and somebody waits for more."""
    count = pace.allowed(now)
    pace.spend(count)
    return count


@pytest.mark.parametrize("seed", range(5))
def test_with_messages_that_wait_it_is_the_stated_rate_however_late_it_is_asked(seed: int) -> None:
    dice = random.Random(seed)
    pace, now, total = RateLimiter(PER_S, 0.0), 0.0, 0
    for _ in range(1_000):
        total += sent(pace, now)
        assert total == pytest.approx(PER_S * now, abs=2.0)
        assert not pace.allowed(now)
        now += pace.wait_s + dice.choice([0.0, 0.001, 0.05, 0.4])


def test_after_a_pause_in_which_nobody_asked_only_a_few_go_at_once() -> None:
    pace = RateLimiter(PER_S, 0.0)
    assert pace.allowed(0.0) == 1  # nobody had to wait
    assert pace.allowed(30.0) == int(BURST_S * PER_S)


def test_rate_limiter_makes_up_for_a_bounded_time() -> None:
    pace = RateLimiter(PER_S, 0.0)
    assert sent(pace, 0.0) == 1
    assert not pace.allowed(0.0)
    assert pace.allowed(30.0) == int(MADE_UP_S * PER_S)


def test_a_slow_pace_lets_one_go_at_a_time() -> None:
    pace = RateLimiter(0.5, 0.0)
    assert sent(pace, 0.0) == 1
    assert not pace.allowed(0.0)
    assert pace.wait_s == pytest.approx(2.0)
    assert pace.allowed(1.9) == 0
    assert pace.allowed(100.0) == 1


@given(st.floats(0.1, 100_000.0), st.floats(0.0, 1e7))
def test_a_wait_moves_the_clock_however_little_of_a_token_is_lacking(
    per_s: float, now: float
) -> None:
    """Otherwise the node would ask again and again in the same moment."""
    pace = RateLimiter(per_s, now)
    for _ in range(100):
        if not sent(pace, now):
            assert now + pace.wait_s > now
        now += pace.wait_s
