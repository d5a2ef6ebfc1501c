"""Feed-forward: level and trend, replicas ahead of a ramp, and nothing for noise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tidegate.core.reasons import otherwise_text
from tidegate.laws.scaling import QueueSituation
from tidegate.laws.scaling.feed_forward import FeedForwardLaw, FeedForwardSettings, RateFilter

# Capacity 100 msg/s, all of it planned with and no reserve: a replica per 100 msg/s. What figures
# below are worked out from stands here, so that tuned defaults may move.
PLAIN = FeedForwardSettings(
    busy=1.0,
    spare=0.0,
    fill=False,
    calm=0.25,
    work_off_s=20.0,
    age_part=0.5,
    age_gain_per_s=0.01,
    down_s=60.0,
    down_room=0.15,
)


def now(at: float, serving: int, arrived: float, **rest: object) -> QueueSituation:
    figures = {"capacity_per_s": 100.0, "consumed_per_s": arrived, **rest}
    return QueueSituation(at, serving, arrived_per_s=arrived, **figures)  # type: ignore[arg-type]


def test_on_a_ramp_level_and_trend_are_found() -> None:
    filter_ = RateFilter()
    for second in range(600):
        rates = filter_.step(second, 100.0 + 2.0 * second)
    assert rates.trend_per_s2 == pytest.approx(2.0, rel=0.05)
    assert rates.level_per_s == pytest.approx(100.0 + 2.0 * 599, rel=0.01)


@pytest.mark.parametrize("every_s", [1.0, 5.0, 30.0])
def test_a_step_is_followed_at_its_second_rate_and_is_no_trend(every_s: float) -> None:
    filter_ = RateFilter()
    for look in range(100):
        filter_.step(look * every_s, 100.0)
    filter_.step(100 * every_s, 600.0)
    stepped = filter_.step(101 * every_s, 610.0)
    assert stepped.level_per_s == pytest.approx(605.0, rel=0.02)
    for look in range(102, 132):
        rates = filter_.step(look * every_s, 605.0)
        assert abs(rates.trend_per_s2) < 0.1
    assert rates.level_per_s == pytest.approx(605.0, rel=0.02)


def test_single_high_rate_is_filtered() -> None:
    filter_ = RateFilter()
    for second in range(100):
        filter_.step(second, 100.0)
    for second in range(100, 200, 10):
        # An average of 5 s takes a fifth of it, and of the trend that it may look like.
        assert filter_.step(second, 600.0).level_per_s < 250.0
        for quiet in range(1, 10):
            filter_.step(second + quiet, 100.0)


def test_after_a_burst_the_level_is_where_it_was() -> None:
    filter_ = RateFilter()
    for second in range(300):
        rates = filter_.step(second, 10_000.0 if 100 <= second < 102 else 1_000.0)
        if second >= 104:
            assert rates.level_per_s == pytest.approx(1_000.0, rel=0.05)


def test_the_same_moment_twice_and_a_clock_that_was_set_back_are_no_step_and_no_trend() -> None:
    filter_ = RateFilter()
    for second in range(1000, 1100):
        filter_.step(second, 100.0 + 2.0 * (second - 1000))
    filter_.step(1100, 900.0)
    assert filter_.step(1100, 900.0).level_per_s < 500.0
    assert filter_.step(200, 310.0).rising_s == 0.0
    assert filter_.step(201, 312.0).rising_s >= 0.0


def test_rate_filter_measures_how_long_the_rate_rises() -> None:
    filter_ = RateFilter()
    for second in range(200):
        rates = filter_.step(second, 100.0 if second < 100 else 100.0 + 2.0 * (second - 100))
        if second < 100:
            assert rates.rising_s == 0.0
    # Noticed when it is more than noise would make.
    assert 80.0 < rates.rising_s < 99.0
    for second in range(200, 300):
        rates = filter_.step(second, 300.0 - 2.0 * (second - 200))
    assert rates.rising_s == 0.0


def test_a_warm_machine_is_the_reserve() -> None:
    """Of 100 msg/s each: one stands by, or a part may be missing before the warm one is asked."""
    for arrived, cold, warm in ((350.0, 5, 4), (315.0, 5, 3)):
        assert FeedForwardLaw().step(now(1, 3, arrived)).replicas == cold
        assert FeedForwardLaw().step(now(1, 3, arrived, keeps_warm=True)).replicas == warm


def test_tolerated_shortage_does_not_remove_a_replica() -> None:
    law = FeedForwardLaw()
    for second in range(600):
        wish = law.step(now(second, 4, 312.0, keeps_warm=True))
        assert wish.replicas == 4
    assert "below 295 for 30 s one would go" in otherwise_text(wish.reasons)


def test_a_pool_that_is_no_longer_kept_changes_the_reserve_and_no_memory() -> None:
    law = FeedForwardLaw()
    for second in range(100):
        assert law.step(now(second, 8, 750.0, keeps_warm=True)).replicas == 8
    # The peak is remembered by whichever reserve holds next.
    for second in range(100, 130):
        assert law.step(now(second, 8, 100.0)).replicas == 8


def test_feed_forward_removes_no_replica_in_the_first_seconds() -> None:
    law = FeedForwardLaw()
    for second in range(90):
        assert law.step(now(second, 8, 100.0)).replicas == 8


def test_noise_is_no_trend_mostly() -> None:
    seeded = random.Random(4)
    filter_ = RateFilter()
    trends = [
        filter_.step(second, max(seeded.gauss(100.0, 10.0), 0.0)).trend_per_s2
        for second in range(3000)
    ]
    believed = [trend for trend in trends[60:] if trend]
    assert len(believed) < 0.1 * len(trends)
    assert max(abs(trend) for trend in believed) < 0.5


def test_a_standing_rate_needs_the_replicas_worked_out_by_hand() -> None:
    law = FeedForwardLaw(PLAIN)
    # 350 msg/s of 100 each.
    assert law.step(now(1, 2, 350.0)).replicas == 4
    # 50 per replica may wait (calm); the other 200 in 20 s are 10 msg/s: 3.6.
    assert FeedForwardLaw(PLAIN).step(now(1, 3, 350.0, waiting=350)).replicas == 4
    # 1 150 in 20 s are 57.5 msg/s: 4.075.
    assert FeedForwardLaw(PLAIN).step(now(1, 3, 350.0, waiting=1300)).replicas == 5


def test_a_ramp_is_ordered_a_boot_ahead_only_as_far_as_slots_run_out() -> None:
    def wish(slots_free: int) -> int:
        law = FeedForwardLaw(PLAIN)
        for second in range(300):
            wanted = law.step(
                now(
                    second,
                    4,
                    80.0 + second,
                    boot_s=100.0,
                    slots_free=slots_free,
                )
            ).replicas
        return wanted

    # 380 msg/s now and 480 in 100 s: 5 replicas by then, and 4 are enough for now.
    assert wish(0) == 5
    assert wish(1) == 4


def test_a_replica_goes_only_when_it_was_not_needed_for_a_while() -> None:
    law = FeedForwardLaw(PLAIN)
    law.step(now(0, 4, 350.0))
    wishes = [law.step(now(second, 4, 150.0)).replicas for second in range(1, 150)]
    down = wishes.index(2) if 2 in wishes else wishes.index(3)
    assert down >= 60
    assert wishes[-1] == 2


def test_within_the_room_nothing_moves() -> None:
    law = FeedForwardLaw(PLAIN)
    # 2.9 needed of 3, then 2.0: with 0.15 to spare 3 stay; 1.8 fit into two.
    for second in range(200):
        assert law.step(now(second, 3, 290.0)).replicas == 3
    for second in range(200, 500):
        assert law.step(now(second, 3, 195.0)).replicas == 3
    for second in range(500, 800):
        last = law.step(now(second, 3, 180.0)).replicas
    assert last == 2


def test_old_messages_say_that_capacity_is_shorter_than_believed() -> None:
    law = FeedForwardLaw(PLAIN)
    # Tolerated are 200 / 100 = 2 s; the oldest waits 3 s although 3 replicas should do.
    assert law.step(now(0, 3, 290.0, oldest_age_s=3.0)).replicas == 3
    for second in range(1, 30):
        last = law.step(now(second, 3, 290.0, oldest_age_s=3.0))
    assert last.replicas == 4


def test_a_reserve_is_kept_and_slots_that_are_paid_for_are_filled() -> None:
    # 3.5 needed and 1.25 spare are 5; with two slots a machine, 6.
    reserve = replace(PLAIN, spare=1.25)
    assert FeedForwardLaw(reserve).step(now(1, 2, 350.0)).replicas == 5
    filled = replace(reserve, fill=True)
    assert FeedForwardLaw(filled).step(now(1, 2, 350.0, slots_per_machine=2)).replicas == 6
    # A queue that sleeps needs no reserve.
    assert FeedForwardLaw(filled).step(now(1, 0, 0.0, slots_per_machine=2)).replicas == 0


def test_without_a_known_capacity_the_waiting_messages_speak() -> None:
    law = FeedForwardLaw()
    wish = law.step(now(1, 1, 500.0, capacity_per_s=None, waiting=201))
    assert (wish.replicas, wish.rule) == (2, "capacity unknown: avg_load > max_load")
