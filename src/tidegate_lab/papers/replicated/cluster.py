"""A logical queue for experiments: two nodes, replicas with a limited rate, clients with a speed.

In the paper each queue had a machine of its own. Here all processes share the cores of one machine.
The rate of each replica is therefore limited to a configured value, far below what the cores allow.
Clients have speeds in the paper's proportion: a consumer is half as fast as a producer, so that one
producer and two consumers are stable. The experiments then measure the placement of clients and
messages, not the processor.
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
# Consumers are slightly faster than needed; otherwise a stable queue would never become empty.
CONSUMER_ROOM = 1.1
# A control loop with an interval of one hour does nothing during a run. The mode recommend-only
# would not do: it fixes the number of replicas only, and still exchanges and migrates.
STILL_S = 3600.0


class Cluster:
    """The nodes of an experiment, and a client that administers them."""

    def __init__(self, control: BlockingClient, urls: list[str]) -> None:
        self.control = control
        self.urls = urls
        # For requests that a control loop sends to nodes and applications do not.
        self._thread = LoopThread()
        self._client = self._thread.wait(Client(urls[0], mode="admin").open())

    def close(self) -> None:
        self._thread.wait(self._client.close())
        self._thread.stop()

    def create(self, queue: str, scaling: Scaling) -> None:
        """Create a logical queue, and wait until its minimum number of replicas serves."""
        self.control.create_queue(queue, durable=True)
        self.control.set_scaling(queue, scaling)
        self.wait_for_replicas(queue, scaling.replicas.min)

    def topology(self, queue: str) -> Topology:
        return self.control.topology(queue)

    def serving(self, queue: str) -> list[int]:
        """Return the numbers of the serving replicas."""
        return [
            place.number
            for place in self.topology(queue).replicas
            if place.state is ReplicaState.SERVING and place.address is not None
        ]

    def wait_for_replicas(self, queue: str, count: int) -> None:
        """Wait until `count` replicas serve; raise `ExperimentFailed` after 30 s."""
        end_s = time.monotonic() + SERVING_TIMEOUT_S
        while len(self.serving(queue)) < count:
            if time.monotonic() > end_s:
                raise ExperimentFailed(
                    f"{queue!r} has {len(self.serving(queue))} of {count} replicas after "
                    f"{SERVING_TIMEOUT_S:g} s"
                )
            time.sleep(0.05)

    def exchange(self, queue: str, numbers: Sequence[QueueNumbers], period_s: float) -> None:
        """Exchange waiting messages once, as the law of exchange proposes, and do nothing else."""
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
        with contextlib.suppress(TidegateError):  # the next period tries again
            await link.ask(packet)

    def hold_still(self, queue: str, scaling: Scaling) -> None:
        """Stop the control loop of a queue, so that it moves nothing between replicas.

        Call this before clients connect: a period that has already begun then has nothing to move.
        """
        self.control.set_scaling(
            queue, msgspec.structs.replace(scaling, polling_interval_s=STILL_S)
        )


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield two nodes on one store."""
    with tidegate_server(nodes=NODES) as server:
        urls = [f"tidegate://127.0.0.1:{port}" for port in server.ports]
        with (
            tidegate.connect(urls[0], mode="admin") as control,
            contextlib.closing(Cluster(control, urls)) as nodes,
        ):
            yield nodes


def two_replicas(rate_per_s: float) -> Scaling:
    """Return settings with exactly two replicas, to which new clients are elected."""
    return Scaling(
        replicas=Range(2, 2),
        policy=ScalingPolicy.CLIENTS,
        polling_interval_s=0.5,
        rate_max_per_s=rate_per_s,
    )


class Speeds(msgspec.Struct, frozen=True):
    """The speed of each producer and each consumer."""

    producer_per_s: float
    consumer_per_s: float

    @staticmethod
    def offering(total_per_s: float, producers: int, consumers: int) -> Speeds:
        """Return speeds at which all producers put `total_per_s` and all consumers take more.

        Consumers are ten percent faster in total.
        """
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
    """Return a client with a speed; clients alternate between the nodes.

    `replica` assigns it to a replica; `None` lets the node elect one. `messages` is how many it
    handles; `None` means until it is stopped.
    """
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
