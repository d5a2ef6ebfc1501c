"""Counters in, rates out; and what was not measured is never zero."""

from __future__ import annotations

from typing import Any

import numbers_of as given
import pytest

from tidegate.core.topology import ReplicaState, ScalingPolicy, Topology
from tidegate.engines.native.sensor import NativeSensor, SensorClusterStats


async def _nothing(*_: object) -> Any:
    raise AssertionError


def _sensor(topology: Topology, *looks: tuple[float, SensorClusterStats]) -> NativeSensor:
    sensor = NativeSensor(_nothing, _nothing)
    for at, cluster in looks:
        _take(sensor, topology, at, cluster)
    return sensor


def _take(
    sensor: NativeSensor,
    topology: Topology,
    at: float,
    cluster: SensorClusterStats,
    late_s: float = 0.0,
) -> None:
    """What all nodes have said at a moment; it is looked at when the last of them has."""
    for node in cluster.nodes:
        node.uptime_s = at
    sensor.take(cluster, [topology], at + late_s)


def _two(put: int, acked: int = 0, epoch: int = 1, waiting: int = 0) -> SensorClusterStats:
    alias, first = given.queue(10), given.queue(11, put=100, acked=100)
    second = given.queue(12, put=put, acked=acked, epoch=epoch, waiting=waiting)
    return given.cluster(given.node(1, alias, first), given.node(2, second))


TWO = given.topology(given.place(1), given.place(2))


def test_rates_are_differences_of_counters_over_the_time_between_two_looks() -> None:
    sensor = _sensor(TWO, (0.0, _two(put=0)), (2.0, _two(put=500, acked=300)))
    sample = sensor.sample(TWO, 2.0)
    assert [one.produced_per_s for one in sample.replicas] == [0.0, 250.0]
    assert [one.consumed_per_s for one in sample.replicas] == [0.0, 150.0]
    assert sample.arrived_per_s == 250.0
    assert sample.age_s == 0.0


def test_a_look_that_was_held_up_by_one_node_makes_nobody_seem_quicker() -> None:
    sensor = _sensor(TWO, (0.0, _two(put=0)), (0.5, _two(put=20, acked=20)))
    # One of the nodes takes its time to answer, and all have spoken when it has.
    _take(sensor, TWO, 1.0, _two(put=40, acked=40), late_s=1.9)
    _take(sensor, TWO, 3.0, _two(put=120, acked=120))
    replica = sensor.sample(TWO, 3.0).replicas[1]
    assert (replica.produced_per_s, replica.consumed_per_s) == (40.0, 40.0)


def test_arrivals_at_alias_and_replicas_are_summed() -> None:
    def said(at_alias: int, at_first: int) -> SensorClusterStats:
        queues = given.queue(10, put=at_alias, waiting=7), given.queue(11, put=at_first)
        return given.cluster(given.node(1, *queues))

    one = given.topology(given.place(1))
    sensor = _sensor(one, (0.0, said(0, 0)), (1.0, said(30, 70)))
    sample = sensor.sample(one, 1.0, pending=2)
    assert sample.arrived_per_s == 100.0
    assert (sample.alias_waiting, sample.pending) == (7, 2)


def test_a_new_owner_that_counts_from_zero_leaves_the_rate_as_it_was() -> None:
    looks = [(0.0, _two(put=0)), (1.0, _two(put=400)), (2.0, _two(put=3, epoch=2))]
    sensor = _sensor(TWO, *looks)
    assert sensor.sample(TWO, 2.0).replicas[1].produced_per_s == 400.0
    _take(sensor, TWO, 3.0, _two(put=103, epoch=2))
    assert sensor.sample(TWO, 3.0).replicas[1].produced_per_s == 100.0


def test_a_node_that_does_not_answer_makes_its_replicas_unreachable_and_older_never_empty() -> None:
    sensor = _sensor(TWO, (0.0, _two(put=0)), (1.0, _two(put=400, waiting=90)))
    alias, first = given.queue(10), given.queue(11, put=100, acked=100)
    _take(sensor, TWO, 4.0, given.cluster(given.node(1, alias, first)))
    sample = sensor.sample(TWO, 4.0)
    assert [one.reachable for one in sample.replicas] == [True, False]
    assert (sample.replicas[1].waiting, sample.replicas[1].produced_per_s) == (90, 400.0)
    assert sample.age_s == 3.0


def test_a_replica_that_nobody_owns_is_unreachable_and_known_to_be() -> None:
    away = given.topology(given.place(1), given.place(2, address=None))
    sensor = _sensor(away, (0.0, _two(put=0)), (1.0, _two(put=400, waiting=90)))
    alias, first = given.queue(10), given.queue(11, put=100, acked=100)
    _take(sensor, away, 9.0, given.cluster(given.node(1, alias, first)))
    sample = sensor.sample(away, 9.0)
    assert not sample.replicas[1].reachable
    assert sample.replicas[1].waiting == 90
    assert sample.age_s == 0.0


def test_a_replica_whose_store_is_away_cannot_be_reached_though_its_node_answers() -> None:
    away = given.topology(given.place(1), given.place(2, address=None))
    sensor = _sensor(away, (0.0, _two(put=0)), (1.0, _two(put=400)))
    assert [one.reachable for one in sensor.sample(away, 1.0).replicas] == [True, False]


def test_a_queue_that_was_never_seen_is_as_old_as_can_be() -> None:
    sample = NativeSensor(_nothing, _nothing).sample(TWO, 5.0)
    assert sample.age_s == float("inf")
    assert not any(one.reachable for one in sample.replicas)


def test_of_two_that_say_they_own_a_queue_the_higher_epoch_is_believed() -> None:
    one = given.topology(given.place(1))
    alias = given.queue(10)
    old, new = given.queue(11, epoch=1, waiting=1), given.queue(11, epoch=2, waiting=2)
    for nodes in (
        [given.node(1, alias, new), given.node(2, old)],
        [given.node(1, alias, old), given.node(2, new)],
    ):
        sensor = _sensor(one, (0.0, given.cluster(*nodes)), (1.0, given.cluster(*nodes)))
        assert sensor.sample(one, 1.0).replicas[0].waiting == 2


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({"process_cpu_s": 0.6}, 0.3),
        ({"memory_resident_bytes": 900}, 0.9),
        ({"commit": given.Durations(count=10, sum_s=1.0)}, 0.5),
        ({"commit": given.Durations(count=10, sum_s=1.0), "writers": 2}, 0.25),
    ],
)
def test_resource_load_is_the_largest_of_processor_memory_and_store(
    changes: dict[str, object], load: float
) -> None:
    one = given.topology(given.place(1))
    queues = given.queue(10), given.queue(11)
    sensor = _sensor(
        one,
        (0.0, given.cluster(given.node(1, *queues))),
        (2.0, given.cluster(given.node(1, *queues, **changes))),
    )
    assert sensor.sample(one, 2.0).resource_load == pytest.approx(load)


def test_consumers_with_credit_and_nothing_to_do_wait() -> None:
    one = given.topology(given.place(1))
    busy, idle = given.consumer(1, prefetch=5, unacknowledged=5), given.consumer(2)
    first = given.queue(11, consumers=[busy, idle], readers_waiting=1, producers=3)
    sensor = _sensor(one, (0.0, given.cluster(given.node(1, given.queue(10), first))))
    replica = sensor.sample(one, 0.0).replicas[0]
    assert (replica.waiting_consumers, replica.consumers, replica.producers) == (2, 2, 3)


def test_a_replica_is_as_old_as_it_has_served() -> None:
    starting = given.topology(given.place(1, state=ReplicaState.STARTING))
    serving = given.topology(given.place(1))
    said = given.cluster(given.node(1, given.queue(10), given.queue(11)))
    sensor = _sensor(starting, (0.0, said))
    assert sensor.sample(starting, 0.0).replicas[0].age_s == 0.0
    sensor.sample(serving, 3.0)
    assert sensor.sample(serving, 5.0).replicas[0].age_s == 2.0


def test_a_leader_that_is_new_holds_until_it_has_seen_a_period() -> None:
    sensor = _sensor(TWO, (7.0, _two(put=500)))
    assert sensor.sample(TWO, 7.0).age_s == float("inf")
    busy = given.cluster(given.node(1, given.queue(10), given.queue(11)), given.node(2))
    _take(sensor, TWO, 8.0, busy)
    _take(sensor, TWO, 9.0, _two(put=700))
    assert sensor.sample(TWO, 9.0).age_s == 0.0


def test_under_the_policy_clients_the_alias_knows_where_producers_are() -> None:
    one = given.topology(given.place(1), policy=ScalingPolicy.CLIENTS)
    alias = given.queue(10, members={1: (4, 0)})
    said = given.cluster(given.node(1, alias, given.queue(11, producers=1)))
    assert _sensor(one, (0.0, said)).sample(one, 0.0).replicas[0].producers == 4
