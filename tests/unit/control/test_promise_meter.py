"""What an agreement judges: differences of what nodes count, and never what was not measured."""

from __future__ import annotations

from typing import Any

import numbers_of as given
import pytest

from tidegate.agreements.evaluation import AgreementSample
from tidegate.core.topology import Topology
from tidegate.engines.native.sensor import AgreementMeter, NativeSensor, SensorClusterStats
from tidegate.telemetry.meters import Histogram
from tidegate.telemetry.stats import Durations, make_durations

ONE = given.topology(given.place(1))
TWO = given.topology(given.place(1), given.place(2))


async def _nothing(*_: object) -> Any:
    raise AssertionError


def _waits(*waits_s: float) -> Durations:
    histogram = Histogram()
    for wait_s in waits_s:
        histogram.add(wait_s)
    return make_durations(histogram)


def _said(*queues: Any, **node: Any) -> SensorClusterStats:
    return given.cluster(given.node(1, given.queue(10), *queues, **node))


def _sampled(*looks: tuple[Topology, SensorClusterStats]) -> list[AgreementSample | None]:
    """One look a second."""
    sensor = NativeSensor(_nothing, _nothing)
    meter = AgreementMeter(sensor)
    found = []
    for second, (topology, look) in enumerate(looks):
        for node in look.nodes:
            node.uptime_s = float(second)
        sensor.take(look, [topology], float(second))
        found.append(meter.sample(topology, float(second), 1000.0 + second))
    return found


def test_a_sample_holds_what_came_waited_and_went_since_the_last() -> None:
    before = given.queue(11, put=100, acked=90, refused=5, wait=_waits(0.1, 0.1, 3.0))
    now = given.queue(
        *(11,),
        put=130,
        acked=110,
        refused=7,
        waiting=20,
        oldest_age_s=2.5,
        wait=_waits(0.1, 0.1, 3.0, 3.0, 0.1, 7.0),
    )
    first, second = _sampled((ONE, _said(before)), (ONE, _said(now, memory_resident_bytes=400)))
    assert first is None
    assert second is not None
    assert (second.at_s, second.interval_s) == (1001.0, 1.0)
    assert (second.accepted, second.served, second.refused) == (30.0, 20.0, 2.0)
    assert (second.waiting, second.oldest_age_s, second.free_memory_bytes) == (20.0, 2.5, 600.0)
    assert [count for _, count in second.times["wait"]] == [1, 1, 1]
    assert [bound_s for bound_s, _ in second.times["wait"]] == pytest.approx([0.1, 3, 7], rel=0.1)


def test_a_new_owner_and_a_new_replica_have_counted_from_nothing() -> None:
    before = given.queue(11, put=100, wait=_waits(1.0))
    moved = given.queue(11, put=4, epoch=2, wait=_waits(2.0, 2.0))
    new = given.queue(12, put=6)
    _, second = _sampled((ONE, _said(before)), (TWO, _said(moved, new)))
    assert second is not None
    assert second.accepted == 10.0
    assert sum(count for _, count in second.times["wait"]) == 2


def test_of_a_replica_that_answers_for_the_first_time_nobody_knows_what_is_new() -> None:
    one, two = given.queue(11, put=100), given.queue(12, put=5000)
    _, silent, back = _sampled((TWO, _said(one)), (TWO, _said(one, two)), (TWO, _said(one, two)))
    assert silent is not None
    assert silent.accepted == 0.0
    assert back is not None
    assert back.accepted == 0.0


def test_count_after_an_owners_silence_is_spread_over_the_silence() -> None:
    def said(put: int) -> SensorClusterStats:
        return given.cluster(given.node(1, given.queue(10, put=put), given.queue(11, put=put)))

    def only_the_replica(put: int) -> SensorClusterStats:
        return given.cluster(given.node(1, given.queue(11, put=put)))

    looks = [said(0), *(only_the_replica(10 * second) for second in range(1, 20)), said(200)]
    *silent, back = _sampled(*((ONE, look) for look in looks))
    assert not any(silent)
    assert back is not None
    # 10/s of each, and not 200 in a second.
    assert (back.interval_s, back.accepted) == (20.0, 400.0)


def test_oldest_age_grows_while_a_replica_does_not_answer() -> None:
    one = given.queue(11)
    two = given.queue(12, waiting=3, oldest_age_s=1.0)
    samples = _sampled((TWO, _said(one, two)), (TWO, _said(one)), (TWO, _said(one)))
    assert [one.oldest_age_s for one in samples if one is not None] == [2.0, 3.0]
