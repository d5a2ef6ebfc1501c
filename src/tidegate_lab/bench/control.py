"""`tidegate bench control`: the time of a control step, and its growth with the replicas.

The benchmark simulates a logical queue whose replicas are on ten nodes, with each node's stats as
the JSON that the node would send. One step is all that the leader's processor does in a period:
decode the stats, compute rates, reconcile the topology, and decide by the scaling law. The counters
change between steps as under load, so that no result comes from a cache. In one step of ten, a
queue also changes its owner.

The bars use processor time, which other processes on the machine hardly change. The report has the
elapsed time too. The time of the store and the network is left out, because the leader does other
work while it waits for them.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.control.queues.loop import ReportedAssignments, TopologyReconciler
from tidegate.core.decisions import Decision
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    Range,
    ReplicaInfo,
    ReplicaState,
    Scaling,
    ScalingPolicy,
    Topology,
)
from tidegate.engines.native.sensor import NativeSensor, SensorClusterStats
from tidegate.telemetry.stats import (
    ClusterStats,
    ConsumerStats,
    Durations,
    NodeStats,
    PhaseStats,
    QueueStats,
)
from tidegate_lab.bench.compare import QUIET, Processors, describe_machine
from tidegate_lab.bench.compare_report import Bar, BarredReport, bar_table

STEP_MS_MAX = 50.0
REPLICAS = 1000
# The largest slope of log(time) over log(replicas): 1 is linear, 2 is quadratic.
EXPONENT_MAX = 1.2
_ALIAS_ID = 1
_NODES = 10
_CONSUMERS = 2
# A busy queue's histogram as the stats contain it.
_BUSY = Durations(1000, 4.0, 3.0, 9.0, 14.0, 30.0, [(0.001 * 2**i, 60) for i in range(14)], 4.0)
Progress = Callable[[str], None]


class ControlOptions(msgspec.Struct, frozen=True):
    """The numbers of replicas, the steps for each, and the scaling policies."""

    replicas: Sequence[int] = (125, 250, 500, 1000, 2000)
    steps: int = 40
    policies: Sequence[ScalingPolicy] = (
        ScalingPolicy.LOAD,
        ScalingPolicy.CLIENTS,
        ScalingPolicy.FEED_FORWARD,
    )

    @staticmethod
    def quick() -> ControlOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return ControlOptions(replicas=(50, 100, 200), steps=5)


class StepTime(msgspec.Struct, frozen=True):
    """The time of one step under one policy with a number of replicas."""

    policy: str
    replicas: int
    # Processor time.
    median_ms: float
    p95_ms: float
    # The fastest step, least disturbed by other processes' use of the caches; the growth exponent
    # is computed from it.
    fastest_ms: float
    us_per_replica: float
    # Elapsed time.
    clock_median_ms: float


class ControlReport(BarredReport, frozen=True):
    """The times of the steps and their growth."""

    steps: list[StepTime]
    # The growth exponent by policy.
    exponents: dict[str, float]
    taken_by_others: float
    environment: dict[str, str]


def run_control(options: ControlOptions, progress: Progress = lambda line: None) -> ControlReport:
    """Measure every number of replicas under every policy and return the report."""
    processors = Processors()
    steps, exponents = [], {}
    with _collecting_as_a_node_does():
        for policy in options.policies:
            found = measure(policy, options.replicas, options.steps)
            for one in found:
                progress(f"{policy}, {one.replicas} replicas: {one.median_ms:.1f} ms")
            steps += found
            exponents[str(policy)] = exponent([(one.replicas, one.fastest_ms) for one in found])
    at_stake = [one.p95_ms for one in steps if one.replicas == REPLICAS]
    return ControlReport(
        bars=[
            Bar(
                f"one control step for {REPLICAS} replicas, p95 of processor time",
                max(at_stake) if at_stake else None,
                STEP_MS_MAX,
                "ms",
                True,
            ),
            Bar(
                "growth: exponent of time over replicas (1 is linear)",
                max(exponents.values()),
                EXPONENT_MAX,
                "",
                True,
            ),
        ],
        steps=steps,
        exponents=exponents,
        taken_by_others=processors.share_of_others(),
        environment=describe_machine(),
    )


@contextlib.contextmanager
def _collecting_as_a_node_does() -> Iterator[None]:
    """Set the garbage collector as a node does; cli/serve.py gives the reason."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def measure(policy: ScalingPolicy, sizes: Sequence[int], steps: int) -> list[StepTime]:
    """Measure the steps of each number of replicas.

    The sizes take turns, so that other processes disturb all of them alike.
    """
    plants = [QueuePlant(policy, replicas) for replicas in sizes]
    taken_ms: list[list[float]] = [[] for _ in plants]
    clock_ms: list[list[float]] = [[] for _ in plants]
    # One step more, because the first has no rates yet and is left out.
    for number in range(steps + 1):
        for plant, taken, clock in zip(plants, taken_ms, clock_ms, strict=True):
            answers = plant.answers(number)
            began, began_clock = time.thread_time(), time.perf_counter()
            decision = plant.step(answers, float(number))
            taken.append(1e3 * (time.thread_time() - began))
            clock.append(1e3 * (time.perf_counter() - began_clock))
            if decision.service != "orders":
                raise AssertionError(f"{decision} is about something else")
    return [
        _summed_up(policy, replicas, taken[1:], clock[1:])
        for replicas, taken, clock in zip(sizes, taken_ms, clock_ms, strict=True)
    ]


def _summed_up(
    policy: ScalingPolicy, replicas: int, taken_ms: list[float], clock_ms: list[float]
) -> StepTime:
    median_ms = statistics.median(taken_ms)
    return StepTime(
        str(policy),
        replicas,
        median_ms,
        sorted(taken_ms)[max(math.ceil(0.95 * len(taken_ms)) - 1, 0)],
        min(taken_ms),
        1e3 * median_ms / replicas,
        statistics.median(clock_ms),
    )


class QueuePlant:
    """A simulated logical queue with its sensor and its autoscaler."""

    def __init__(self, policy: ScalingPolicy, replicas: int) -> None:
        self._random = random.Random(replicas)
        scaling = Scaling(replicas=Range(1, 2 * replicas), policy=policy, max_wait_s=2.0)
        self._topology = Topology(
            _ALIAS_ID,
            "orders",
            1,
            scaling,
            [
                ReplicaInfo(
                    _ALIAS_ID + number,
                    number,
                    ReplicaState.SERVING,
                    1 / replicas,
                    number,
                    "tidegate://127.0.0.1:7411",
                )
                for number in range(1, replicas + 1)
            ],
            [1 + index % replicas for index in range(ASSIGNMENT_SLOTS)],
        )
        self._puts = [0] * (replicas + 1)
        self._epochs = [1] * (replicas + 1)
        self._sensor = NativeSensor(_nobody, _nobody)
        self._upkeep = TopologyReconciler()
        self._autoscaler = Autoscaler(scaling)

    def answers(self, number: int) -> list[bytes]:
        """Return each node's stats as JSON for one period."""
        if number % 10 == 9:
            self._epochs[-1] += 1
        queues: list[list[QueueStats]] = [[] for _ in range(_NODES)]
        for index in range(len(self._puts)):
            self._puts[index] += self._random.randint(50, 150)
            queues[index % _NODES].append(self._queue(index))
        return [
            msgspec.json.encode(ClusterStats([_node(1 + place, owned, number)]))
            for place, owned in enumerate(queues)
        ]

    def _queue(self, index: int) -> QueueStats:
        put = self._puts[index]
        return QueueStats(
            queue_id=_ALIAS_ID + index,
            name=f"orders#{index}" if index else "orders",
            durable=True,
            epoch=self._epochs[index],
            waiting=self._random.randint(50, 200),
            waiting_in_store=0,
            unacknowledged=20,
            oldest_age_s=0.5,
            resident_bytes=100_000,
            put=put,
            delivered=put,
            acked=max(put - 100, 0),
            returned=0,
            redelivered=0,
            refused=0,
            put_per_s=100.0,
            delivered_per_s=100.0,
            acked_per_s=100.0,
            readers_waiting=0,
            wait=_BUSY,
            service=_BUSY,
            consumers=[_consumer(index, one) for one in range(_CONSUMERS)],
        )

    def step(self, answers: list[bytes], now: float) -> Decision:
        """Run one control step from the nodes' stats, as the leader does."""
        nodes = [
            msgspec.json.decode(answer, type=SensorClusterStats).nodes[0] for answer in answers
        ]
        topology, sensor = self._topology, self._sensor
        sensor.take(SensorClusterStats(nodes), [topology], now)
        sample = sensor.sample(topology, now)
        self._upkeep.serving(topology, sample)
        self._upkeep.assignments(topology, lambda number: ReportedAssignments([], []))
        return self._autoscaler.decide(sample)


async def _nobody(*_: object) -> Any:
    raise AssertionError("the numbers are given")


def _consumer(queue: int, number: int) -> ConsumerStats:
    return ConsumerStats(
        consumer=number,
        client_id=queue,
        client_name=f"worker {queue}",
        prefetch=100,
        unacknowledged=10,
        delivered=1000,
        acked=990,
        delivered_per_s=50.0,
        acked_per_s=50.0,
        automatic=False,
        service=_BUSY,
    )


def _node(member_id: int, queues: list[QueueStats], second: int) -> NodeStats:
    values: dict[str, Any] = {"process_cpu_s": 0.4 * second, "commit": _BUSY}
    return NodeStats(
        member_id=member_id,
        name=f"node {member_id}",
        address=f"tidegate://127.0.0.1:{7410 + member_id}",
        uptime_s=float(second),
        connections=100,
        memory_bound_bytes=1 << 29,
        memory_resident_bytes=1 << 27,
        process_memory_bytes=1 << 28,
        commits=100 * second,
        messages_per_commit=30.0,
        packets_in=1000 * second,
        packets_out=1000 * second,
        queues=queues,
        phases=PhaseStats(_BUSY, _BUSY, _BUSY, _BUSY, _BUSY, _BUSY),
        **values,
    )


def exponent(points: list[tuple[int, float]]) -> float:
    """Return the slope of log(time) over log(size) by least squares."""
    x = [math.log(size) for size, _ in points]
    y = [math.log(taken) for _, taken in points]
    return statistics.linear_regression(x, y).slope


def render_control(report: ControlReport, console: Console) -> None:
    """Print the figures, then the bars."""
    table = Table(title="One step of control: decode, sense, keep up, decide (processor time)")
    for column in (
        *("policy", "replicas", "median, ms", "p95, ms", "µs per replica"),
        "on the clock, ms",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for one in report.steps:
        table.add_row(
            one.policy,
            f"{one.replicas:,}",
            f"{one.median_ms:.2f}",
            f"{one.p95_ms:.2f}",
            f"{one.us_per_replica:.1f}",
            f"{one.clock_median_ms:.2f}",
        )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took {100 * report.taken_by_others:.0f} % of the machine meanwhile.",
            style="yellow",
        )
