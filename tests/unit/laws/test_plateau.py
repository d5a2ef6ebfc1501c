"""Where more prefetch brings no more: what is one, what only looks like one, and how it ends."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from tidegate.laws.prefetch.knee import HELD_SAMPLES, PlateauDetector

WORTH_PER_S = 70.0


def _seen(
    plateau: PlateauDetector, rates: Iterable[tuple[float, float]], interval_s: float = 1.0
) -> None:
    for prefetch, rate_per_s in rates:
        plateau.observe(prefetch, rate_per_s, interval_s)


def _climb(low: int, high: int) -> list[float]:
    return [float(prefetch) for prefetch in range(low, high + 1)]


def test_a_rate_that_follows_its_prefetch_is_on_no_plateau() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, WORTH_PER_S * u) for u in _climb(1, 100)])
    assert plateau.bound == math.inf
    assert not plateau.is_seen


def test_a_handler_that_has_become_slow_holds_the_prefetch_where_it_was() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(6.0, 420.0)] * 3)
    _seen(plateau, [(u, 200.0) for u in _climb(6, 16)])
    assert plateau.is_seen
    assert 6.0 <= plateau.bound <= 8.0


def test_beyond_the_ceiling_it_is_held_at_the_knee() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, min(WORTH_PER_S * u, 700.0)) for u in _climb(1, 24)])
    assert 8.0 <= plateau.bound <= 12.0


def test_a_way_that_is_three_times_as_long_is_none() -> None:
    # As much gives a third, and more gives more again.
    plateau = PlateauDetector()
    _seen(plateau, [(6.0, 420.0)] * 3)
    _seen(plateau, [(u, WORTH_PER_S / 3.0 * u) for u in _climb(6, 40)])
    assert plateau.bound == math.inf


def test_a_line_that_does_not_begin_at_nothing_is_none() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, 60.0 + WORTH_PER_S * u) for u in _climb(2, 60)])
    assert plateau.bound == math.inf


def test_a_few_messages_a_second_are_too_few_to_say_so_soon() -> None:
    # Two a second on average: a sample has none or five of them.
    for seed in range(20):
        dice = random.Random(seed)
        plateau = PlateauDetector()
        for u in _climb(5, 20):
            counted = sum(dice.random() < 0.1 * u / 100.0 for _ in range(100))
            plateau.observe(u, float(counted), 1.0)
        assert plateau.bound == math.inf


def test_messages_that_are_away_for_longer_than_the_samples_say_nothing() -> None:
    # A round of credit in every fifth sample: no count of three samples is a rate.
    plateau = PlateauDetector()
    _seen(plateau, [(u, 5.0 * u if k % 5 == 0 else 0.0) for k, u in enumerate(_climb(10, 60))], 0.1)
    assert plateau.bound == math.inf


def _is_known(plateau: PlateauDetector) -> bool:
    return plateau.is_seen and math.isfinite(plateau.bound)


def test_a_rate_that_rises_again_ends_it() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, 200.0) for u in _climb(6, 16)])
    assert _is_known(plateau)
    _seen(plateau, [(7.0, 300.0)] * 6)
    assert not _is_known(plateau)


def test_a_target_that_is_reached_ends_it() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, 200.0) for u in _climb(6, 16)])
    assert _is_known(plateau)
    plateau.reset()
    assert not _is_known(plateau)


def test_a_spike_on_the_way_up_does_not_move_the_knee() -> None:
    # A machine that paused makes up for it: a tenth more in one sample, and then as before.
    plateau = PlateauDetector()
    _seen(plateau, [(u, 240.0 if u in (9.0, 10.0) else 200.0) for u in _climb(6, 16)])
    assert _is_known(plateau)
    assert plateau.bound < 9.0


def test_once_in_a_while_it_is_tried_anew_and_meanwhile_it_stays_known() -> None:
    plateau = PlateauDetector()
    _seen(plateau, [(u, 200.0) for u in _climb(6, 16)])
    held = 0
    while math.isfinite(bound := plateau.bound):
        plateau.observe(bound, 200.0, 1.0)
        held += 1
    assert HELD_SAMPLES <= held <= HELD_SAMPLES + 5
    assert plateau.is_seen
    _seen(plateau, [(u, 200.0) for u in _climb(6, 16)])
    assert math.isfinite(plateau.bound)


def test_plateau_ignores_the_backlog_after_a_decrease() -> None:
    # A hundred too many lie there: for half a second nothing is sent.
    plateau = PlateauDetector()
    _seen(plateau, [(u, 200.0) for u in (6.0, 6.0, 6.0, 100.0, 105.0, 110.0)], 0.25)
    bound = plateau.bound
    assert 6.0 <= bound < 7.0
    _seen(plateau, [(6.0, 0.0), (6.0, 0.0), *[(6.0, 200.0)] * 6], 0.25)
    assert plateau.bound == bound
