"""Logical queues for experiments: two nodes, replicas with a stated rate, clients with a speed.

Strategy: the paper's queues stood on machines of their own; ours share two cores, so what a replica
delivers is limited to a stated rate, far below what the cores allow. Producers and consumers have
speeds too, in the paper's proportion: a consumer is half as fast as a producer, so that one
producer for two consumers is stable. What is measured is then placement, and not the processor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient, LoopThread
from tidegate.client.client import Client
from tidegate.core.errors import TidegateError
from tidegate.core.replication import ReplicaState, Role, Topology
from tidegate.core.scaling import Range, Scaling, ScalingPolicy
from tidegate.core.steering import ReplicaSample
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.replicated.crew_process import Seat
from tidegate.lab.report.experiments import ExperimentFailed
from tidegate.laws.exchange import exchanges
from tidegate.telemetry.numbers import QueueNumbers
from tidegate.wire.packet import Request
from tidegate.wire.packets.exchange import Pull

NODES = 2
SERVING_TIMEOUT_S = 30.0
# Consumers are a little faster than they need to be, or a stable queue would never empty.
CONSUMER_ROOM = 1.1
# A loop that looks once in an hour stands still. Recommend-only does not: it leaves alone how many
# replicas there are, and goes on to exchange and to migrate among them.
STILL_S = 3600.0


class Cluster:
    """Nodes, and the client that gives orders to them."""

    def __init__(self, control: BlockingClient, urls: list[str]) -> None:
        self.control = control
        self.urls = urls
        # For what a loop says to nodes, which no application does.
        self._thread = LoopThread()
        self._client = self._thread.wait(Client(urls[0], mode="admin").open())

    def close(self) -> None:
        self._thread.wait(self._client.close())
        self._thread.stop()

    def create(self, queue: str, scaling: Scaling) -> None:
        """A logical queue whose least replicas serve."""
        self.control.create_queue(queue, durable=True)
        self.control.set_scaling(queue, scaling)
        self.wait_for_replicas(queue, scaling.replicas.min)

    def topology(self, queue: str) -> Topology:
        return self.control.topology(queue)

    def serving(self, queue: str) -> list[int]:
        """Numbers of the replicas that serve."""
        return [
            place.number
            for place in self.topology(queue).replicas
            if place.state is ReplicaState.SERVING and place.address is not None
        ]

    def wait_for_replicas(self, queue: str, count: int) -> None:
        end_s = time.monotonic() + SERVING_TIMEOUT_S
        while len(self.serving(queue)) < count:
            if time.monotonic() > end_s:
                raise ExperimentFailed(
                    f"{queue!r} has {len(self.serving(queue))} of {count} replicas after "
                    f"{SERVING_TIMEOUT_S:g} s"
                )
            time.sleep(0.05)

    def exchange(self, queue: str, numbers: Sequence[QueueNumbers], period_s: float) -> None:
        """Once what the law of exchange says, and nothing else that a loop would do."""
        topology = self.topology(queue)
        held = {one.queue_id: one for one in numbers}
        samples = [
            ReplicaSample(
                number=place.number,
                state=place.state,
                consumed_per_s=held[place.queue_id].acked_per_s,
                waiting=held[place.queue_id].waiting,
                consumers=len(held[place.queue_id].consumers),
                waiting_consumers=sum(
                    one.unacknowledged < one.prefetch for one in held[place.queue_id].consumers
                ),
            )
            for place in topology.replicas
            if place.queue_id in held
        ]
        for move in exchanges(samples, 0, {}, period_s):
            source, target = topology.replica(move.source), topology.replica(move.target)
            if source is not None and target is not None:
                self._thread.wait(self._ask(Pull(target.queue_id, source.queue_id, move.count)))

    async def _ask(self, packet: Request) -> None:
        link = await self._client.connected()
        with contextlib.suppress(TidegateError):  # the next period asks again
            await link.ask(packet)

    def hold_still(self, queue: str, scaling: Scaling) -> None:
        """From now on nothing is moved between the replicas that there are.

        Said while nobody is there: a period that is just under way has nothing to move.
        """
        self.control.set_scaling(
            queue, msgspec.structs.replace(scaling, polling_interval_s=STILL_S)
        )


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Two nodes on one store."""
    with tidegate_server(nodes=NODES) as server:
        urls = [f"tidegate://127.0.0.1:{port}" for port in server.ports]
        with (
            tidegate.connect(urls[0], mode="admin") as control,
            contextlib.closing(Cluster(control, urls)) as nodes,
        ):
            yield nodes


def two_replicas(rate_per_s: float) -> Scaling:
    """Two, whatever happens; clients are elected onto them."""
    return Scaling(
        replicas=Range(2, 2),
        policy=ScalingPolicy.CLIENTS,
        polling_interval_s=0.5,
        rate_max_per_s=rate_per_s,
    )


class Speeds(msgspec.Struct, frozen=True):
    """How fast each producer and each consumer is."""

    producer_per_s: float
    consumer_per_s: float

    @staticmethod
    def offering(total_per_s: float, producers: int, consumers: int) -> Speeds:
        """Producers that put so many in all, and consumers that can just take them."""
        return Speeds(total_per_s / producers, CONSUMER_ROOM * total_per_s / consumers)


def seat(
    number: int,
    role: Role,
    cluster: Cluster,
    queue: str,
    speeds: Speeds,
    *,
    replica: int | None = None,
    messages: int | None = None,
) -> Seat:
    """A client with a speed, at a replica or elected; connected to one node or the other."""
    return Seat(
        number,
        role,
        cluster.urls[number % len(cluster.urls)],
        queue,
        messages,
        transactions=False,
        rate_per_s=(speeds.producer_per_s if role is Role.PRODUCER else speeds.consumer_per_s),
        replica=replica,
    )
