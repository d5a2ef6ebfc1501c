"""A logical queue for experiments: two nodes, replicas with a limited rate, clients with a speed.

In the paper each queue had a machine of its own. Here all processes share the cores of one machine.
The rate of each replica is therefore limited to a configured value, far below what the cores allow.
Clients have speeds in the paper's proportion: a consumer is half as fast as a producer, so that one
producer and two consumers are stable. The experiments then measure the placement of clients and
messages, not the processor.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from math import comb

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient, LoopThread
from tidegate.client.client import Client
from tidegate.core.decisions import ReplicaSample
from tidegate.core.errors import TidegateError
from tidegate.core.topology import MemberRole, Range, ReplicaState, Scaling, ScalingPolicy, Topology
from tidegate.laws.routing import exchanges
from tidegate.protocol.cluster import Pull
from tidegate.protocol.packet import Request
from tidegate.telemetry.stats import QueueStats
from tidegate_lab.bench.compare import QUIET
from tidegate_lab.papers.replicated.crew import ClientSpec, QueueTotalsRow
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.report import ExperimentFailed

NODES = 2
SERVING_TIMEOUT_S = 30.0
# Consumers are slightly faster than needed; otherwise a stable queue would never become empty.
CONSUMER_ROOM = 1.1
# A control loop with an interval of one hour does nothing during a run. The mode recommend-only
# would not do: it fixes the number of replicas only, and still exchanges and migrates.
STILL_S = 3600.0


class TestCluster:
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

    def exchange(self, queue: str, numbers: Sequence[QueueStats], period_s: float) -> None:
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
            await link.request(packet)

    def hold_still(self, queue: str, scaling: Scaling) -> None:
        """Stop the control loop of a queue, so that it moves nothing between replicas.

        Call this before clients connect: a period that has already begun then has nothing to move.
        """
        self.control.set_scaling(
            queue, msgspec.structs.replace(scaling, polling_interval_s=STILL_S)
        )


@contextlib.contextmanager
def cluster() -> Iterator[TestCluster]:
    """Yield two nodes on one store."""
    with tidegate_server(nodes=NODES) as server:
        urls = [f"tidegate://127.0.0.1:{port}" for port in server.ports]
        with (
            tidegate.connect(urls[0], mode="admin") as control,
            contextlib.closing(TestCluster(control, urls)) as nodes,
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


class ClientSpeeds(msgspec.Struct, frozen=True):
    """The speed of each producer and each consumer."""

    producer_per_s: float
    consumer_per_s: float

    @staticmethod
    def offering(total_per_s: float, producers: int, consumers: int) -> ClientSpeeds:
        """Return speeds at which all producers put `total_per_s` and all consumers take more.

        Consumers are ten percent faster in total.
        """
        return ClientSpeeds(total_per_s / producers, CONSUMER_ROOM * total_per_s / consumers)


def connect_client(
    number: int,
    role: MemberRole,
    cluster: TestCluster,
    queue: str,
    speeds: ClientSpeeds,
    *,
    replica: int | None = None,
    messages: int | None = None,
) -> ClientSpec:
    """Return a client with a speed; clients alternate between the nodes.

    `replica` assigns it to a replica; `None` lets the node elect one. `messages` is how many it
    handles; `None` means until it is stopped.
    """
    return ClientSpec(
        number,
        role,
        cluster.urls[number % len(cluster.urls)],
        queue,
        messages,
        transactions=False,
        rate_per_s=(
            speeds.producer_per_s if role is MemberRole.PRODUCER else speeds.consumer_per_s
        ),
        replica=replica,
    )


def disturbance(taken_by_others: float) -> list[str]:
    """Return a note about the share that other processes took; empty if the machine was quiet."""
    if taken_by_others <= QUIET:
        return []
    return [
        f"Other processes took {100 * taken_by_others:.0f} % of the machine meanwhile: rates are "
        "lower than they could be, and differences may be theirs."
    ]


# Production and consumption rates per second, and their means over the stable part of a run.


# The paper leaves out the first and last 5 s; in a shorter run, a fifth at either end.
EDGE_S = 5.0
EDGE_SHARE_MAX = 0.2


class StableRates(msgspec.Struct, frozen=True):
    """The mean rates of a run over its stable part."""

    produced_per_s: float
    consumed_per_s: float
    # The length of that part, and what was left out at either end.
    seconds: float
    edge_s: float
    waiting_max: int

    @property
    def throughput_per_s(self) -> float:
        """The smaller of the two rates: growth or decline of the backlog cannot last."""
        return min(self.produced_per_s, self.consumed_per_s)

    @property
    def imbalance(self) -> float:
        """The difference of the two rates, as a fraction of the larger."""
        larger = max(self.produced_per_s, self.consumed_per_s)
        return abs(self.produced_per_s - self.consumed_per_s) / larger if larger else 0.0


class RateSeries(msgspec.Struct, frozen=True):
    """The rates and stats between successive samples, as lists."""

    at_s: list[float]
    produced_per_s: list[float]
    consumed_per_s: list[float]
    waiting: list[int]
    clients: list[int]


def series_of(rows: Sequence[QueueTotalsRow]) -> RateSeries:
    """Return the rates between successive samples."""
    steps = [
        (before, after) for before, after in itertools.pairwise(rows) if after.at_s > before.at_s
    ]
    return RateSeries(
        at_s=[after.at_s for _, after in steps],
        produced_per_s=[(b.produced - a.produced) / (b.at_s - a.at_s) for a, b in steps],
        consumed_per_s=[(b.consumed - a.consumed) / (b.at_s - a.at_s) for a, b in steps],
        waiting=[after.waiting for _, after in steps],
        clients=[after.clients for _, after in steps],
    )


def rates_of(rows: Sequence[QueueTotalsRow], *, while_clients: int | None = None) -> StableRates:
    """Return the mean rates while at least `while_clients` clients are at work.

    `None` means the highest number of clients that the run had.
    """
    wanted = max(row.clients for row in rows) if while_clients is None else while_clients
    busy = [row for row in rows if row.clients >= wanted]
    if len(busy) < 2:
        busy = list(rows)
    whole_s = busy[-1].at_s - busy[0].at_s
    edge_s = min(EDGE_S, EDGE_SHARE_MAX * whole_s)
    inner = [row for row in busy if busy[0].at_s + edge_s <= row.at_s <= busy[-1].at_s - edge_s]
    if len(inner) < 2:
        inner = busy
    seconds = inner[-1].at_s - inner[0].at_s
    return StableRates(
        produced_per_s=(inner[-1].produced - inner[0].produced) / max(seconds, 1e-9),
        consumed_per_s=(inner[-1].consumed - inner[0].consumed) / max(seconds, 1e-9),
        seconds=seconds,
        edge_s=edge_s,
        waiting_max=max(row.waiting for row in rows),
    )


def average(runs: Sequence[StableRates]) -> StableRates:
    """Return the mean over several runs, as the paper's charts show."""
    return StableRates(
        produced_per_s=statistics.fmean(one.produced_per_s for one in runs),
        consumed_per_s=statistics.fmean(one.consumed_per_s for one in runs),
        seconds=sum(one.seconds for one in runs),
        edge_s=min(one.edge_s for one in runs),
        waiting_max=max(one.waiting_max for one in runs),
    )


# A model of how clients arrive without election, as in JORAM by default.
#
# The paper says of JORAM's own balancing only that it distributes clients badly. We model it as a
# random choice of the replica, independent of the client's role. For a fair comparison we use a
# median outcome: with 4 producers and 8 consumers on two replicas there are 2^12 equally likely
# placements. They are ordered by the distance between x_1 and y_1, then by the distance of both
# from one half. The median of this order is used.


def median_placement(producers: int, consumers: int) -> tuple[int, int]:
    """Return how many producers and consumers the first replica gets in the median placement."""
    outcomes = sorted(
        (
            (
                abs(first / producers - second / consumers),
                abs(first / producers - 0.5) + abs(second / consumers - 0.5),
                # Of two mirror images, the one with more producers on the first replica.
                -first,
                first,
                second,
            ),
            comb(producers, first) * comb(consumers, second),
        )
        for first in range(producers + 1)
        for second in range(consumers + 1)
    )
    seen, half = 0, 2 ** (producers + consumers) / 2
    for (_, _, _, first, second), ways in outcomes:
        seen += ways
        if seen >= half:
            return first, second
    raise AssertionError("all outcomes together are all there are")


class Scale(msgspec.Struct, frozen=True):
    """Sizes of one run; with the defaults all experiments take less than ten minutes."""

    # Figure 4: messages that are put and then read, at each backlog, in several rounds.
    speed_messages: int = 1500
    backlogs: Sequence[int] = (10_000, 100_000, 1_000_000)
    speed_rounds: int = 3
    # Figures 5 and 6.
    mix_messages: int = 15_000
    mix_consumers: Sequence[int] = (1, 2, 3)
    mix_runs: int = 1
    # Limits the time on a busy machine.
    mix_seconds_max: float = 30.0
    # Figure 7: the seconds per mix, and the mixes.
    capacity_seconds: float = 6.0
    capacity_producers: Sequence[int] = (1, 2, 4, 8)
    capacity_consumers_each: Sequence[float] = (0.5, 1.0, 2.0)
    # Figures 8 and 9, and the scenarios.
    messages_each_producer: int = 1500
    distribution_runs: int = 1
    scenario_seconds: float = 8.0
    # The optimal scenario must be included.
    scenarios: Sequence[str] = ("optimal", "worst", "locally unstable", "unfair")
    # Figures 10 and 11.
    client_every_s: float = 2.0
    # The configured limit of each replica, since two cores cannot stand for several machines.
    replica_rate_per_s: float = 100.0

    @staticmethod
    def quick() -> Scale:
        """Return the smallest sizes that run all code; their results mean nothing."""
        return Scale(
            speed_messages=60,
            backlogs=(2_000,),
            speed_rounds=1,
            mix_messages=300,
            mix_consumers=(1, 2),
            capacity_seconds=0.5,
            capacity_producers=(1, 2),
            capacity_consumers_each=(1.0, 2.0),
            messages_each_producer=300,
            scenario_seconds=2.0,
            scenarios=("optimal", "worst"),
            client_every_s=0.3,
        )

    @staticmethod
    def full() -> Scale:
        """Return the paper's sizes; a run takes most of an hour."""
        return Scale(
            mix_runs=3,
            mix_seconds_max=600.0,
            capacity_seconds=20.0,
            messages_each_producer=10_000,
            distribution_runs=3,
            scenario_seconds=30.0,
            client_every_s=10.0,
        )
