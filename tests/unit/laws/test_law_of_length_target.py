"""The KEDA-like policy, as KEDA and the HPA behave."""

from __future__ import annotations

import pytest

from tidegate.laws.scaling import QueueSituation
from tidegate.laws.scaling.load import LengthLaw


def test_messages_divided_by_the_target_rounded_up() -> None:
    law = LengthLaw(100.0)
    # Ready and unacknowledged: 330 of 100 each.
    assert law.step(QueueSituation(0.0, 2, waiting=300, unacknowledged=30)).replicas == 4


def test_between_two_polls_nothing_is_noticed() -> None:
    law = LengthLaw(100.0, polling_s=30.0)
    assert law.step(QueueSituation(0.0, 1, waiting=50)).replicas == 1
    assert law.step(QueueSituation(29.0, 1, waiting=900)).replicas == 1
    assert law.step(QueueSituation(30.0, 1, waiting=400)).replicas == 4


def test_a_ratio_within_a_tenth_changes_nothing() -> None:
    law = LengthLaw(100.0)
    assert law.step(QueueSituation(0.0, 4, waiting=439)).replicas == 4
    assert law.step(QueueSituation(30.0, 4, waiting=441)).replicas == 5


def test_a_scale_up_at_most_doubles_or_adds_four() -> None:
    assert LengthLaw(100.0).step(QueueSituation(0.0, 1, waiting=9000)).replicas == 5
    assert LengthLaw(100.0).step(QueueSituation(0.0, 8, waiting=9000)).replicas == 16


def test_a_scale_in_waits_for_the_stabilisation_window() -> None:
    law = LengthLaw(100.0)
    assert law.step(QueueSituation(0.0, 6, waiting=600)).replicas == 6
    for poll in range(1, 11):
        wish = law.step(QueueSituation(30.0 * poll, 6, waiting=200))
        assert (wish.replicas, wish.rule) == (6, "held: stabilisation window")
    assert law.step(QueueSituation(330.0, 6, waiting=200)).replicas == 2


def test_to_none_only_after_the_cool_down_without_a_message() -> None:
    law = LengthLaw(100.0)
    law.step(QueueSituation(0.0, 1, waiting=1))
    wishes = [law.step(QueueSituation(30.0 * poll, 1)).replicas for poll in range(1, 25)]
    assert wishes.index(0) >= 9
    assert wishes[-1] == 0


def test_a_target_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="queue_length is above 0"):
        LengthLaw(0.0)
