"""What `tidegate steer` says while it runs: what has changed, and now and then how it goes."""

from __future__ import annotations

from tidegate.cli.rabbitmq import PROGRESS_S, SteerProgress
from tidegate.core.decisions import QueueSample
from tidegate.core.topology import ReplicaState
from tidegate.engines.rabbitmq.sensor import RabbitmqSample
from tidegate.engines.rabbitmq.topology import ElasticReplica, ElasticTopology


def look(trouble: str = "") -> RabbitmqSample:
    sample = QueueSample(queue="orders", at=0.0, replicas=[], alias_waiting=7)
    return RabbitmqSample(sample=sample, unknown=["arrived_per_s"], trouble=trouble)


def topology(*replicas: ElasticReplica) -> ElasticTopology:
    return ElasticTopology(queue="orders", version=1, replicas=list(replicas))


COMING = ElasticReplica(number=1)
SERVING = ElasticReplica(number=1, state=ReplicaState.SERVING, weight=60)


def test_while_replicas_stay_as_they_are_it_is_said_now_and_then() -> None:
    said: list[str] = []
    progress = SteerProgress(said.append)
    # Whatever is recommended, period after period.
    for period in range(10 * int(PROGRESS_S)):
        progress.seen(topology(), look(), 100.0 + 0.1 * period)
    assert said == ["orders: replicas none; 7 waiting"]
    progress.seen(topology(), look(), 101.0 + PROGRESS_S)
    assert len(said) == 2


def test_a_replica_that_comes_serves_or_goes_is_said_at_once() -> None:
    said: list[str] = []
    progress = SteerProgress(said.append)
    turned = ElasticReplica(number=1, state=ReplicaState.SERVING, weight=40)
    for at, one in enumerate([(), (COMING,), (COMING,), (SERVING,), (turned,), ()]):
        progress.seen(topology(*one), look(), 0.1 * at)
    assert [line.partition(";")[0] for line in said] == [
        "orders: replicas none",
        "orders: replicas 1: coming",
        "orders: replicas 1: 100%",
        "orders: replicas none",
    ]


def test_trouble_is_said_once_and_that_it_is_over() -> None:
    said: list[str] = []
    progress = SteerProgress(said.append)
    for at, trouble in enumerate(["", "it does not answer", "it does not answer", ""]):
        progress.seen(topology(), look(trouble), 0.1 * at)
    assert said[1:] == ["it does not answer", "the management API answers"]
