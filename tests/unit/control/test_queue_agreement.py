"""A queue's agreement as a loop has it: what it asks for, what it learns, what it leaves behind."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numbers_of as given
import pytest

from tidegate.agreements.document import (
    Agreement,
    parse_agreement,
    with_agreed_scaling,
    with_agreement,
)
from tidegate.agreements.evaluation import AgreementSample, Verdict
from tidegate.agreements.ledger import StoredAgreementStatus, Transition
from tidegate.control.agreement_monitor import AgreementMonitor, prefetch_boost
from tidegate.control.alerts import Alerts
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.provisioning import SlotRequest
from tidegate.control.queues.agreement import QueueAgreement
from tidegate.control.queues.loop import QueueLoop
from tidegate.core.decisions import KeepUp
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.topology import Range, Scaling, ScalingPolicy
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor, SensorConsumerStats
from tidegate.laws.scaling.wait import WaitTarget
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.models import StoredModel


def said(metrics: str, more: str = "") -> Agreement:
    head = f'name = "shop"\nqueue = "orders"\nwindow = "10s"\n{more}\n'
    return parse_agreement(head + metrics, "shop.toml")


WAIT = '[metrics.wait_p99]\nbreach = "6s"\n'
LEARNED = '[metrics.wait_p99]\nbreach = "6s"\nwarning = "learned"\n'


def waited(agreement: QueueAgreement, window: int, wait_s: float) -> None:
    """A window in which everything waited for so long, and the first second of the next."""
    for second in range(1, 11):
        at_s = 10.0 * window + second - 0.5
        times = {"wait": [(wait_s, 10.0)], "service": [(0.5, 10.0)]}
        agreement.add_sample(AgreementSample(at_s=at_s, served=10.0, accepted=10.0, times=times))


def test_the_nearest_warning_of_all_promised_waits_is_what_the_law_keeps() -> None:
    both = WAIT + '[metrics.oldest_age]\nbreach = "5s"\n[metrics.throughput]\nbreach = 100\n'
    pledge = QueueAgreement(said(both), "orders").wait_target(3.0)
    assert (pledge.wait_s, pledge.metric) == (pytest.approx(4.0), "oldest_age")
    assert (pledge.throughput_per_s, pledge.growth_per_s2) == (pytest.approx(120.0), 3.0)
    only = QueueAgreement(said("[metrics.throughput]\nbreach = 100\n"), "orders").wait_target(None)
    assert only == WaitTarget(throughput_per_s=pytest.approx(120.0))


def test_of_a_response_what_the_handlers_take_is_not_left_to_waiting() -> None:
    agreement = QueueAgreement(said('[metrics.response_p99]\nbreach = "5s"\n'), "orders")
    assert agreement.wait_target(None).wait_s == pytest.approx(4.0)
    waited(agreement, 0, 0.1)
    assert agreement.wait_target(None).wait_s == pytest.approx(3.5)


def test_a_danger_lasts_from_a_bad_window_to_one_that_is_not() -> None:
    agreement = QueueAgreement(said(WAIT), "orders")
    assert not agreement.wait_target(None).endangered
    waited(agreement, 0, 5.0)
    waited(agreement, 1, 0.1)
    assert agreement.wait_target(None).endangered
    waited(agreement, 2, 0.1)
    assert not agreement.wait_target(None).endangered


def test_a_learned_warning_lies_as_far_before_the_breach_as_a_replica_takes_to_come() -> None:
    agreement = QueueAgreement(said(LEARNED), "orders")
    assert agreement.wait_target(None).wait_s == pytest.approx(4.8)
    for window, wait_s in enumerate([0.1, 2.1, 0.1, 0.1]):
        waited(agreement, window, wait_s)
    # By 2 s in the 10 s of a window; nobody knows yet how long a replica takes.
    agreement.learn_warnings()
    assert agreement.wait_target(None).wait_s == pytest.approx(4.8)
    assert agreement.reconfigured(8.0)
    assert not agreement.reconfigured(8.0)
    agreement.learn_warnings()
    # 1.25 · 0.2 · 8 s.
    assert agreement.wait_target(None).wait_s == pytest.approx(6.0 - 2.0, abs=0.05)
    assert "a reconfiguration takes" in agreement.lessons[0].because


def test_slope_is_not_learned_when_producers_stop() -> None:
    throughput = '[metrics.throughput]\nbreach = 100\nwarning = "learned"\n'
    agreement = QueueAgreement(said(LEARNED + throughput), "orders")
    for at_s in range(1, 40):
        count = 1000.0 if at_s < 20 else 0.0
        agreement.add_sample(
            AgreementSample(at_s=float(at_s), served=count, accepted=count, waiting=0.0)
        )
    agreement.learn_warnings(3.0)
    assert agreement.slopes_per_s == {}
    assert agreement.wait_target(None).throughput_per_s == pytest.approx(120.0)


def test_learned_slope_of_the_lake_moves_the_warning() -> None:
    agreement = QueueAgreement(said(LEARNED), "orders")
    figures = {"slope_wait_p99": 0.4, "reconfiguration_s": 6.0}
    learned = StoredModel("shop", True, "", figures, {}, 1, 0.0, 1.0)
    agreement.learn_warnings(97.0, learned)
    # 1.25 · 0.4 · 6 s.
    assert agreement.wait_target(None).wait_s == pytest.approx(3.0)
    for window, wait_s in enumerate([0.1, 5.1, 0.1]):
        waited(agreement, window, wait_s)
    agreement.learn_warnings(97.0, learned)
    assert agreement.wait_target(None).wait_s == pytest.approx(6.0 - 1.25 * 0.5 * 6.0, abs=0.05)


def test_how_long_a_reconfiguration_takes_is_believed_to_who_has_seen_it_most() -> None:
    agreement = QueueAgreement(said(WAIT, 'reconfiguration = "1s"'), "orders")
    assert agreement.reconfiguration_s() == 1.0
    assert agreement.reconfiguration_s(boot_s=97.0) == 97.0
    agreement.reconfigured(4.0)
    assert agreement.reconfiguration_s(boot_s=97.0) == 4.0


def test_the_next_leader_has_the_history_and_what_was_learned() -> None:
    first = QueueAgreement(said(LEARNED), "orders")
    for window, wait_s in enumerate([0.1, 7.0, 0.1]):
        waited(first, window, wait_s)
    kept = first.standing("1 replica more")
    assert kept is not None
    assert (kept.queue, kept.doing, kept.verdict) == ("orders", "1 replica more", Verdict.BREACHED)
    second = QueueAgreement(said(LEARNED), "orders", kept)
    assert second.slopes_per_s == first.slopes_per_s
    waited(second, 3, 0.1)
    waited(second, 4, 0.1)
    after = second.standing("")
    assert after is not None
    assert sum(one.breached for one in after.history.hours.values()) == 1
    # Another promise is another budget.
    other = QueueAgreement(said(WAIT.replace("6s", "9s")), "orders", kept)
    assert other.slopes_per_s == {}


def test_a_quiet_window_before_a_change_of_leaders_ends_no_breach() -> None:
    first = QueueAgreement(said(WAIT), "orders")
    waited(first, 0, 7.0)
    for second in range(10, 25):
        first.add_sample(AgreementSample(at_s=second + 0.5))
    kept = first.standing("")
    assert kept is not None
    assert kept.verdict is Verdict.NO_DATA
    kept = StoredAgreementStatus.from_json(kept.to_json())

    second = QueueAgreement(said(WAIT), "orders", kept)
    waited(second, 3, 0.1)
    [entry] = second.add_sample(AgreementSample(at_s=40.5))
    assert [event.turn for event in entry.events] == [Transition.KEPT]


def test_queues_of_a_pattern_are_kept_apart() -> None:
    pattern = parse_agreement('name = "shop"\nqueue = "orders.*"\n' + WAIT, "shop.toml")
    assert QueueAgreement(pattern, "orders.eu").key == "shop/orders.eu"
    assert QueueAgreement(said(WAIT), "orders").key == "shop/orders"


async def _nothing(*_: object) -> Any:
    raise AssertionError


@pytest.mark.asyncio
async def test_machines_are_kept_warm_for_the_growth_that_the_agreement_promises() -> None:
    store, learned = MemoryStore(), AcceptedModels(None)
    sensor, journal = NativeSensor(_nothing, _nothing), Journal(store, None, time.time)
    keeping = AgreementMonitor(store, sensor, journal, time.time, Alerts())
    actuator = NativeActuator(store, _nothing)
    loop = QueueLoop(store, sensor, actuator, journal, learned, None, keeping)
    text = 'name = "shop"\nqueue = "orders"\nsla_delta = 4\ncapacity = 100\n' + WAIT
    agreed = given.topology(policy=ScalingPolicy.AGREEMENT, agreement=text, boot_s=96.9)
    await keeping.measure(agreed, 0.0)
    guess = loop.capacity_guess(agreed)
    assert guess is not None
    assert (guess.value, guess.origin) == (100.0, "said in the agreement")
    scaling = msgspec.structs.replace(loop.completed(agreed), slots_per_machine=2)
    # The papers' check value: ceil(4 · 96.9 / 200).
    assert SlotRequest.of("orders", scaling, 0, guess.value).warm_wanted == 2
    # Under another policy it is judged, and nothing is done for it.
    judged = given.topology(agreement=text, boot_s=96.9)
    await keeping.measure(judged, 1.0)
    assert loop.capacity_guess(judged) is None
    assert loop.completed(judged).sla_delta is None


@pytest.mark.asyncio
async def test_an_agreement_that_cannot_be_read_any_more_holds_the_queue_and_says_why() -> None:
    store = MemoryStore()
    sensor, journal = NativeSensor(_nothing, _nothing), Journal(store, None, time.time)
    keeping = AgreementMonitor(store, sensor, journal, time.time, Alerts())
    text = 'name = "shop"\nqueue = "orders"\n[metrics.patience_p99]\nbreach = 3\n'
    await keeping.measure(given.topology(policy=ScalingPolicy.AGREEMENT, agreement=text), 0.0)
    assert keeping.agreement is None
    assert "agreement of queue orders:3: metrics.patience_p99" in keeping.trouble


def test_a_persons_word_about_the_queue_counts_more_than_its_agreement() -> None:
    agreement = said(WAIT, "replicas = { min = 2, max = 4 }\nsla_delta = 3\ncapacity = 50")
    silent = with_agreed_scaling(Scaling(), agreement)
    assert (silent.replicas, silent.sla_delta) == (Range(2, 4), 3.0)
    # What one replica does is a fact: the document's guess is no word about it.
    assert silent.capacity_per_s is None
    spoken = with_agreed_scaling(Scaling(replicas=Range(1, 9), sla_delta=7.0), agreement)
    assert (spoken.replicas, spoken.sla_delta) == (Range(1, 9), 7.0)
    # Whoever sets an agreement says its bounds by that.
    assert with_agreement(spoken, agreement, "…").replicas == Range(2, 4)


def test_inside_comes_first_where_it_can_help_and_is_said_where_it_cannot() -> None:
    full = [
        SensorConsumerStats(prefetch=5, unacknowledged=5),
        SensorConsumerStats(prefetch=5, unacknowledged=2),
    ]
    free = full[1:]
    assert prefetch_boost(None, full, waiting=10).action == KeepUp()
    for goal, consumers, waiting, says in (
        (None, [], 10, "nobody consumes"),
        (None, free, 10, "credit for more"),
        (None, full, 0, "credit for more"),
        (PrefetchGoal(), full, 10, "keeps up already"),
        (PrefetchGoal(manual=3), full, 10, "a person has set the prefetch"),
        (PrefetchGoal(rate_per_s=50.0), full, 10, "a person has set the prefetch"),
    ):
        found = prefetch_boost(goal, consumers, waiting)
        assert found.action is None
        assert says in found.said
