"""Figures 10 and 11: clients arrive one by one, at one queue and at a queue that grows.

There are five steps of one producer and two consumers, with a fixed time between clients. A replica
delivers R and a producer puts R/2, so one replica serves two steps (six clients) best: C = 6. In
the static run there is one replica. In the dynamic run the policy `clients` adds a second replica
when L_c ≥ 1, and new clients are elected to it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.core.decisions import AddReplica
from tidegate.core.topology import MemberRole, Range, Scaling, ScalingPolicy
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_rows
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    CONSUMER_ROOM,
    ClientSpeeds,
    RateSeries,
    Scale,
    TestCluster,
    cluster,
    connect_client,
    disturbance,
    series_of,
)
from tidegate_lab.papers.replicated.crew import QueueTotalsRow, client_group
from tidegate_lab.report import Drawing, ExperimentSection, Progress

STEPS = 5
CLIENTS = 3 * STEPS
CAPACITY_CLIENTS = 6
# The measurement continues after the last client has joined, for this many times the time between
# two clients.
AFTERWARDS = 5
PAPER_TIMES = 1.9
# The paper's values for figures 10 and 11.
PAPER_STATIC_PER_MS, PAPER_DYNAMIC_PER_MS, PAPER_SECOND_QUEUE_S = 1.9, 3.7, 120.0
PAPER_RATIO = PAPER_DYNAMIC_PER_MS / PAPER_STATIC_PER_MS
STATIC, DYNAMIC = "static", "dynamic"
PAPER_CLIENT_EVERY_S = 10.0


class GrowthRun(msgspec.Struct, frozen=True):
    """The measurement of one run, static or dynamic."""

    label: str
    series: RateSeries
    # The number of serving replicas at the same times.
    replicas: list[int]
    # The mean consumption rate after the last client arrived.
    throughput_per_s: float
    # The number of clients when the second replica began to serve; `None` if it never did.
    second_at_clients: int | None
    second_at_s: float | None
    # The reason in the loop's decision to add it.
    why: str = ""


def growth_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure both runs on real nodes, and return the section about them."""
    found: dict[str, GrowthRun] = {}
    with cluster() as nodes:
        processors = Processors()
        for label in (STATIC, DYNAMIC):
            found[label] = one = _run(nodes, label, scale)
            progress(
                f"{label}: {one.throughput_per_s:,.0f}/s in the end"
                + (
                    f", a second replica at {one.second_at_clients} clients"
                    if one.second_at_clients
                    else ""
                )
            )
        others = processors.share_of_others()
    return _section(found[STATIC], found[DYNAMIC], scale, others, folder)


def _scaling(label: str, scale: Scale) -> Scaling:
    return Scaling(
        replicas=Range(1, 1 if label == STATIC else 2),
        policy=ScalingPolicy.CLIENTS,
        capacity_clients=float(CAPACITY_CLIENTS),
        # The product does not sample a queue more often than ten times a second.
        polling_interval_s=max(0.1, min(0.5, scale.client_every_s / 4)),
        inhibition_s=scale.client_every_s,
        rate_max_per_s=scale.replica_rate_per_s,
    )


def _run(nodes: TestCluster, label: str, scale: Scale) -> GrowthRun:
    queue = f"growth-{label}"
    nodes.create(queue, _scaling(label, scale))
    rate = scale.replica_rate_per_s
    speeds = ClientSpeeds(rate / 2, CONSUMER_ROOM * rate / 4)
    replicas: list[int] = []
    came: list[int] = []
    with client_group(nodes.control, queue) as crew:
        crew.begin()

        def note(clients: int, seconds: float) -> None:
            """Sample the queue every second, or twice between two clients if they come faster."""
            every_s = min(1.0, scale.client_every_s / 2)
            for _ in range(max(1, round(seconds / every_s))):
                crew.watch(every_s, every_s)
                replicas.append(len(nodes.serving(queue)))
                came.append(clients)

        for number in range(CLIENTS):
            role = MemberRole.PRODUCER if number % 3 == 0 else MemberRole.CONSUMER
            crew.come([connect_client(number, role, nodes, queue, speeds)])
            crew.go([number])
            note(number + 1, scale.client_every_s)
        all_came = len(crew.rows) - 1
        note(CLIENTS, AFTERWARDS * scale.client_every_s)
        rows = list(crew.rows)
        why = _why(nodes, queue)
        crew.leave()
        crew.settle()
    second = next((turn for turn, count in enumerate(replicas) if count > 1), None)
    return GrowthRun(
        label,
        series_of(rows),
        replicas,
        _throughput(rows[all_came:]),
        None if second is None else came[second],
        None if second is None else rows[second + 1].at_s,
        why,
    )


def _why(nodes: TestCluster, queue: str) -> str:
    """Return the reason for which the loop added a second replica; empty if it did not."""
    for decision in nodes.control.explain(queue, count=500):
        if decision.inputs.get("serving") and any(
            isinstance(action, AddReplica) for action in decision.actions
        ):
            return f"{decision.rule}: {decision.reason}"
    return ""


def _throughput(rows: list[QueueTotalsRow]) -> float:
    """Return the consumption rate in the second half, when the newest client is fully at work."""
    half = rows[len(rows) // 2 - 1 :] if len(rows) > 2 else rows
    return (half[-1].consumed - half[0].consumed) / (half[-1].at_s - half[0].at_s)


def _section(
    static: GrowthRun, dynamic: GrowthRun, scale: Scale, others: float, folder: Path
) -> ExperimentSection:
    times = dynamic.throughput_per_s / max(static.throughput_per_s, 1e-9)
    factor = PAPER_CLIENT_EVERY_S / scale.client_every_s
    draw_rows(
        [
            Panel(
                f"{one.label} provisioning",
                "seconds",
                "messages a second",
                [
                    Line("produced", one.series.at_s, one.series.produced_per_s, colour="#1f6fb2"),
                    Line("consumed", one.series.at_s, one.series.consumed_per_s, colour="#2f9e6e"),
                ],
                levels={
                    "one replica": scale.replica_rate_per_s,
                    "two replicas": 2 * scale.replica_rate_per_s,
                },
            )
            for one in (static, dynamic)
        ],
        folder / "fig10.png",
        same_scale=True,
    )
    return ExperimentSection(
        name="fig10",
        title="Static and dynamic provisioning as clients come",
        source="Replicated queues §7.5, figures 10 and 11",
        paper=(
            "Static: production and consumption stay at 1.9 messages/ms from the second step on. "
            "Dynamic: a second queue at about 120 s, then 3.7 messages/ms."
        ),
        ours=(
            f"Static {static.throughput_per_s:,.0f}/s, dynamic {dynamic.throughput_per_s:,.0f}/s: "
            f"{times:.2f} times as much (the paper: {PAPER_RATIO:.2f}). "
            + (
                "A second replica never came."
                if dynamic.second_at_clients is None
                else f"The second replica served when {dynamic.second_at_clients} clients had "
                f"come; by clients alone L_c is 1 with {CAPACITY_CLIENTS}."
            )
        ),
        drawings=[
            Drawing(
                "fig10.png",
                f"A client each {scale.client_every_s:g} s: {factor:g} times as fast as in the "
                f"paper. The paper's axes are others: {PAPER_STATIC_PER_MS:g} messages/ms static, "
                f"{PAPER_DYNAMIC_PER_MS:g} dynamic, which is × "
                f"{PAPER_RATIO:.2f}; here × {times:.2f}.",
            )
        ],
        tables=[
            ReportTable(
                f"After all {CLIENTS} clients had come",
                ["provisioning", "replicas", "consumed/s"],
                [
                    [one.label, str(one.replicas[-1]), f"{one.throughput_per_s:,.0f}"]
                    for one in (static, dynamic)
                ],
            )
        ],
        bars=[
            Bar("throughput, dynamic of static", times, PAPER_TIMES, "×"),
            Bar(
                "clients that had come when the second replica served",
                None if dynamic.second_at_clients is None else float(dynamic.second_at_clients),
                float(CAPACITY_CLIENTS + 2),
                "",
                at_most=True,
            ),
        ],
        notes=[
            f"Time runs {factor:g} times as fast as in the paper.",
            f"Why it was added, in the loop's words: {dynamic.why or 'it was not.'} The law takes "
            "the larger of the clients' load and the machines': on a busy machine it adds earlier.",
            f"A replica has a stated limit of {scale.replica_rate_per_s:g} messages/s, and a "
            "producer half of that as its speed, since two cores do not show what two machines "
            "did.",
            *disturbance(others),
        ],
        data={
            "time_scale": factor,
            "capacity_clients": CAPACITY_CLIENTS,
            "times": times,
            STATIC: msgspec.to_builtins(static),
            DYNAMIC: msgspec.to_builtins(dynamic),
        },
    )
