"""The papers' policy "load": thresholds, plans, cancelled plans and what is learned from them."""

from __future__ import annotations

import random

import pytest

from tidegate.core.reasons import Reason, reason_text
from tidegate.laws.scaling import QueueSituation
from tidegate.laws.scaling.load import LoadLaw, LoadLawSettings


def at(
    time: float, serving: int, waiting: int, arrived: float = 100.0, **rest: object
) -> QueueSituation:
    figures = {"arrived_per_s": arrived, "consumed_per_s": arrived, **rest}
    return QueueSituation(time, serving, waiting=waiting, **figures)  # type: ignore[arg-type]


def test_the_thresholds_by_hand() -> None:
    law = LoadLaw()
    # 2 replicas: 400 waiting are 200 each, not above max_load; 401 are.
    assert law.step(at(1, 2, 400)).replicas == 2
    assert law.step(at(2, 2, 401)).replicas == 3
    assert law.step(at(3, 2, 401, inhibited=True)).replicas == 2
    # 100 are 50 each, not below min_load.
    assert law.step(at(4, 2, 100)).replicas == 2


def test_below_min_load_one_replica_goes_at_a_time() -> None:
    law = LoadLaw()
    assert law.step(at(1, 4, 199)).replicas == 3
    # While it goes, its messages and its place count: 160 over 4.
    going = law.step(at(2, 3, 160, draining=1))
    assert (going.replicas, going.rule) == (3, "avg_load < min_load: plan goes on")


def test_a_cancelled_plan_is_not_tried_again_before_arrivals_have_fallen() -> None:
    law = LoadLaw()
    assert law.step(at(1, 2, 10, 105.0)).replicas == 1
    assert law.step(at(5, 1, 101, 105.0, draining=1)).replicas == 2
    for time in range(6, 600):
        held = law.step(at(time, 2, 0, 105.0 - 10.0 * (time % 2)))
        assert (held.replicas, held.rule) == (2, "held: backed off")
    assert "1 replicas were too few at 105 msg/s" in reason_text(held.reasons)
    # A tenth below 105.
    assert law.step(at(700, 2, 0, 94.4)).replicas == 1


def test_added_replica_stays_at_the_same_rate() -> None:
    law = LoadLaw()
    assert law.step(at(1, 1, 201, 130.0, consumed_per_s=100.0)).replicas == 2
    assert law.step(at(99, 2, 0, 130.0)).rule == "held: backed off"


def test_an_old_backlog_says_nothing_about_how_many_are_too_few() -> None:
    law = LoadLaw()
    # 20 msg/s come and 100 go: what waits is from before.
    assert law.step(at(1, 1, 500, 20.0, consumed_per_s=100.0)).replicas == 2
    assert law.step(at(99, 2, 0, 20.0)).replicas == 1


def test_removal_is_retried_at_growing_intervals() -> None:
    law = LoadLaw(LoadLawSettings(remembered_s=100.0))
    law.step(at(0, 1, 101, draining=1))
    assert law.step(at(99, 2, 0)).replicas == 2
    assert law.step(at(101, 2, 0)).replicas == 1
    law.step(at(102, 1, 101, draining=1))
    assert law.step(at(299, 2, 0)).replicas == 2
    assert law.step(at(303, 2, 0)).replicas == 1


def test_a_large_backlog_takes_the_whole_step() -> None:
    assert LoadLaw(LoadLawSettings(step_max=3)).step(at(1, 2, 5000)).replicas == 5
    # 2 · 250 need three replicas of 200 each.
    assert LoadLaw(LoadLawSettings(step_max=3)).step(at(1, 2, 500)).replicas == 3


def test_a_load_that_grows_is_met_before_it_is_too_high() -> None:
    law = LoadLaw()
    # 2 replicas, 20 messages more each second: 6 s ahead (a start, and one look) are 60 more each.
    for time, waiting in enumerate((180, 200, 220, 240, 260, 280)):
        assert law.step(at(time, 2, waiting, start_s=5.0)).replicas == 2
    soon = law.step(at(6, 2, 300, start_s=5.0))
    assert (soon.replicas, soon.rule) == (3, "avg_load > max_load soon")
    assert soon.reasons[0] == Reason.LOAD_SOON_ABOVE(load=150.0, soon=210.0, max_load=200.0)


def test_the_papers_own_rule_waits_until_the_load_is_above() -> None:
    law = LoadLaw(LoadLawSettings(looks_ahead=False))
    for time in range(6, 21):
        assert law.step(at(time, 2, 20 * time)).replicas == 2
    assert law.step(at(21, 2, 401)).replicas == 3


def test_a_burst_is_no_growth() -> None:
    law = LoadLaw()
    for time, waiting in enumerate((220, 220, 220, 220, 270, 320, 320, 320, 320, 320)):
        assert law.step(at(time, 2, waiting)).replicas == 2


def test_a_load_is_believed_to_double_at_most() -> None:
    law = LoadLaw()
    # 30 a second in each of two: 275 in each after 6 s, if that were believed of 95.
    for time, waiting in enumerate((10, 10, 10, 10, 10, 70, 130, 190)):
        assert law.step(at(time, 2, waiting)).replicas <= 2


@pytest.mark.parametrize(("load", "deviation"), [(120.0, 20.0), (150.0, 10.0), (150.0, 5.0)])
def test_varying_load_without_growth_rarely_adds_replicas(load: float, deviation: float) -> None:
    law, seeded = LoadLaw(), random.Random(7)
    wanted = [
        law.step(at(time, 1, round(seeded.gauss(load, deviation)))).replicas for time in range(1000)
    ]
    assert sum(count > 1 for count in wanted) <= 20


def test_predicted_shortage_prevents_removal_at_the_same_rate() -> None:
    law = LoadLaw()
    for time, waiting in enumerate((90, 100, 110, 120, 130, 140, 150)):
        wish = law.step(at(time, 1, waiting))
    assert wish.rule == "avg_load > max_load soon"
    assert law.step(at(99, 2, 0)).rule == "held: backed off"


def test_repeated_shortage_at_the_maximum_is_remembered_once() -> None:
    law = LoadLaw(LoadLawSettings(remembered_s=100.0))
    # At the most replicas that there may be: it is said at each look, and is the same.
    for time in range(50):
        law.step(at(time, 1, 300, 130.0))
    assert law.step(at(148, 2, 0, 130.0)).rule == "held: backed off"
    assert law.step(at(150, 2, 0, 130.0)).replicas == 1


@pytest.mark.parametrize("later", [5.0, 3600.0])
def test_after_a_clock_that_was_set_back_or_a_long_silence_growth_is_read_anew(
    later: float,
) -> None:
    law = LoadLaw()
    for time in range(10, 16):
        law.step(at(time, 2, 8 * time))
    for look, waiting in enumerate((200, 210, 220, 230, 240)):
        assert law.step(at(later + look, 2, waiting)).rule == "min_load ≤ avg_load ≤ max_load"
