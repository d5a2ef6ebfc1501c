"""One in N: weights add up to what there was, whatever the load does."""

from __future__ import annotations

import random

import pytest

from tidegate.telemetry.meters import AdaptiveSampler


def test_while_few_come_all_are_taken() -> None:
    sampler = AdaptiveSampler(50)
    assert list(sampler.among_ids(7, 20)) == list(range(7, 27))


def test_a_burst_is_thinned_at_once_and_weights_add_up() -> None:
    sampler = AdaptiveSampler(50)
    taken = 0
    stands_for = 0
    first_id = 1
    for count in [3, 400, 4096, 1, 4096, 2000] * 50:
        chosen = sampler.among_ids(first_id, count)
        taken += len(chosen)
        stands_for += len(chosen) * chosen.step
        first_id += count
    assert stands_for == pytest.approx(first_id, rel=0.1)
    # A share for each doubling: 500 000 messages are some 14 of them.
    assert taken < 50 * 16


def test_sampler_follows_the_load() -> None:
    sampler = AdaptiveSampler(50)
    for second in range(20):
        sampler.among_ids(1 + second * 100_000, 100_000)
        sampler.tick()
    assert 1024 <= sampler.every <= 4096
    for second in range(20):
        sampler.among_ids(5_000_000 + 10 * second, 10)
        sampler.tick()
    assert sampler.every == 1


def test_sampler_takes_both_of_two_alternating_kinds() -> None:
    """Every 2nd, 4th, 8th … of put, get, put, get would be the one kind only."""
    sampler = AdaptiveSampler(10, randomness=random.Random(1))
    weights = {"put": 0, "get": 0}
    skip = sampler.skip
    for number in range(100_000):
        skip -= 1
        if skip <= 0:
            weights["put" if number % 2 else "get"] += sampler.one_by_one()
            skip = sampler.skip
        if number % 5000 == 0:
            sampler.tick()
    assert weights["put"] == pytest.approx(50_000, rel=0.35)
    assert weights["get"] == pytest.approx(50_000, rel=0.35)
