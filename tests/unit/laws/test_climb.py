"""Where the knee was: what a climb remembers, and what it must forget."""

from __future__ import annotations

from tidegate.laws.prefetch.knee import KneeTracker


def _climbed(*seen: tuple[float, float]) -> KneeTracker:
    climb = KneeTracker()
    for prefetch, rate_per_s in seen:
        climb.observe(prefetch, rate_per_s)
    return climb


def test_beyond_the_knee_the_way_back_begins_at_the_knee() -> None:
    line = [(float(u), 70.0 * u) for u in range(1, 11)]
    flat = [(float(u), 700.0) for u in range(12, 40, 4)]
    climb = _climbed(*line, *flat)
    assert climb.knee_below(36.0) is not None
    assert 8.0 < climb.knee < 12.0


def test_a_handler_that_is_quick_again_is_no_knee_where_the_prefetch_happens_to_be() -> None:
    # A handler of 200 msg/s: the prefetch climbs in vain, then the rate jumps at 60.
    in_vain = [(float(u), 200.0) for u in range(5, 61, 5)]
    climb = _climbed(*in_vain, (60.0, 1000.0), (60.0, 1000.0), (60.0, 1000.0))
    assert climb.has_jumped
    assert climb.knee_below(60.0) is not None
    assert climb.ceiling_per_s > 900.0


def test_a_longer_way_starts_the_climb_anew() -> None:
    # As much prefetch gives half as much: what was the ceiling is none, and the rate follows again.
    before = [(6.0, 400.0)] * 3
    longer = [(6.0 + step, 33.0 * (6.0 + step)) for step in range(7)]
    climb = _climbed(*before, *longer)
    assert not climb.has_jumped
    assert climb.knee_below(12.0) is None


def test_reset_forgets_the_ceiling_of_the_last_climb() -> None:
    climb = _climbed((6.0, 400.0), (6.0, 402.0))
    climb.reset()
    climb.observe(6.0, 200.0)
    assert climb.ceiling_per_s == 200.0
