"""Figures 5, 6 and 7: the best mix of producers and consumers for a single queue.

First one producer runs with one, two and three consumers, over the paper's 15,000 messages. Then a
grid of mixes runs for some seconds each. From the grid the law of the pipeline's `capacity` job
determines C, the number of clients that a queue serves best, and the best mix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.laws.capacity import Capacity, LoadPoint, capacity
from tidegate.laws.scaling import stability
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    RateSeries,
    Scale,
    StableRates,
    average,
    disturbance,
    rates_of,
    series_of,
)
from tidegate_lab.papers.replicated.crew import (
    ClientGroup,
    QueueTotalsRow,
    client_group,
    client_specs,
)
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.report import Drawing, ExperimentSection, Progress

BLUE, TEAL, GREY = "#1f6fb2", "#2f9e6e", "#8a8f98"
WARM_UP_S = 1.0
# The largest difference of both rates, relative to the larger, that counts as stable.
STABLE_WITHIN = 0.05
# Mixes within this fraction of the best throughput count as equally good.
NEAR_BEST = 0.95
TRIED_BEYOND = 1.25


class MixRun(msgspec.Struct, frozen=True):
    """The measurement of one mix."""

    producers: int
    consumers: int
    rates: StableRates
    series: RateSeries
    state: str

    @property
    def label(self) -> str:
        return f"{self.producers} : {self.consumers}"


@contextlib.contextmanager
def _node() -> Iterator[tuple[BlockingClient, str]]:
    with tidegate_server() as server:
        url = f"tidegate://127.0.0.1:{server.port}"
        with tidegate.connect(url, mode="admin") as control:
            yield control, url


def mixes_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure figures 5 and 6, and return the section about them."""
    runs: list[MixRun] = []
    with _node() as (control, url):
        processors = Processors()
        for consumers in scale.mix_consumers:
            found = [
                _one_producer(control, url, f"one-to-{consumers}-{turn}", consumers, scale)
                for turn in range(scale.mix_runs)
            ]
            rates = average([rates_of(rows) for rows in found])
            run = MixRun(
                producers=1,
                consumers=consumers,
                rates=rates,
                series=series_of(found[0]),
                state=stability(rates.produced_per_s, rates.consumed_per_s).value,
            )
            runs.append(run)
            progress(
                f"{run.label}: produced {rates.produced_per_s:,.0f}/s, consumed "
                f"{rates.consumed_per_s:,.0f}/s, {run.state}"
            )
        others = processors.share_of_others()
    return _mixes_section(runs, scale, others, folder)


def _one_producer(
    control: BlockingClient, url: str, queue: str, consumers: int, scale: Scale
) -> list[QueueTotalsRow]:
    control.create_queue(queue, durable=True)
    with client_group(control, queue) as crew:
        seats = client_specs(1, consumers, url=url, queue=queue, put_each=scale.mix_messages)
        crew.come(seats)
        crew.begin()
        crew.go()
        _until_put(crew, scale.mix_messages, scale.mix_seconds_max)
        rows = list(crew.rows)
        crew.leave()
        crew.settle()
    control.delete_queue(queue)
    return rows


def _until_put(crew: ClientGroup, messages: int, seconds_max: float) -> None:
    """Sample until the producer has put all messages, or the time is over."""
    while crew.look().produced < messages and crew.rows[-1].at_s < seconds_max:
        crew.watch(1.0 if messages > 1000 else 0.1)


def best_mix(runs: list[MixRun]) -> MixRun:
    """Return the mix with the fewest clients among the mixes near the best throughput."""
    enough = NEAR_BEST * max(run.rates.throughput_per_s for run in runs)
    near = [run for run in runs if run.rates.throughput_per_s >= enough]
    return min(near, key=lambda run: (run.producers + run.consumers, run.rates.imbalance))


def _mixes_section(
    runs: list[MixRun], scale: Scale, others: float, folder: Path
) -> ExperimentSection:
    best = best_mix(runs)
    draw_panels(
        [
            Panel(
                f"1 producer, {run.consumers} consumer{'' if run.consumers == 1 else 's'}",
                "seconds",
                "messages a second, and waiting" if run is runs[0] else "",
                [
                    Line("produced", run.series.at_s, run.series.produced_per_s, colour=BLUE),
                    Line("consumed", run.series.at_s, run.series.consumed_per_s, colour=TEAL),
                    Line(
                        "waiting",
                        run.series.at_s,
                        [float(count) for count in run.series.waiting],
                        dashed=True,
                        colour=GREY,
                    ),
                ],
            )
            for run in runs
        ],
        folder / "fig5.png",
        same_scale=True,
    )
    return ExperimentSection(
        name="fig5",
        title="One producer with one, two and three consumers",
        source="Replicated queues §7.2, figures 5 and 6",
        paper=(
            "With one consumer production is twice consumption and the queue grows; with two (and "
            "three) it is stable. The best ratio: one producer for two consumers."
        ),
        ours=(
            f"Best is {best.label}: {best.rates.produced_per_s:,.0f}/s in, "
            f"{best.rates.consumed_per_s:,.0f}/s out. With one consumer, consumption is "
            f"{runs[0].rates.consumed_per_s / runs[0].rates.produced_per_s:.2f} of production."
        ),
        drawings=[
            Drawing(
                "fig5.png",
                f"{scale.mix_messages:,} messages of 1 KiB, or as many as go in "
                f"{scale.mix_seconds_max:g} s, a transaction for each; a probe each second; the "
                "first of the runs.",
            )
        ],
        tables=[
            ReportTable(
                f"Means without the first and last {best.rates.edge_s:.1f} s, "
                f"runs: {scale.mix_runs} (the paper: 5 s, 3 runs)",
                ["producers : consumers", "produced/s", "consumed/s", "waiting at most", "state"],
                [
                    [
                        run.label,
                        f"{run.rates.produced_per_s:,.0f}",
                        f"{run.rates.consumed_per_s:,.0f}",
                        f"{run.rates.waiting_max:,}",
                        run.state,
                    ]
                    for run in runs
                ],
            )
        ],
        bars=[
            Bar(
                f"rates of the best mix ({best.label}) differ by, of the larger",
                best.rates.imbalance,
                STABLE_WITHIN,
                "",
                at_most=True,
            )
        ],
        notes=disturbance(others),
        data={
            "messages": scale.mix_messages,
            "runs": scale.mix_runs,
            "best_mix": {"producers": best.producers, "consumers": best.consumers},
            "mixes": msgspec.to_builtins(runs),
        },
    )


# Figure 7


def capacity_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure the capacity of a single queue (figure 7), and return the section about it."""
    operations: list[LoadPoint] = []
    with _node() as (control, url):
        processors = Processors()
        for producers in scale.capacity_producers:
            for each in scale.capacity_consumers_each:
                consumers = max(1, round(producers * each))
                if (producers, consumers) in [(o.producers, o.consumers) for o in operations]:
                    continue
                operation = _operation(control, url, producers, consumers, scale.capacity_seconds)
                operations.append(operation)
                progress(
                    f"{producers} : {consumers}: produced {operation.produced_per_s:,.0f}/s, "
                    f"consumed {operation.consumed_per_s:,.0f}/s"
                )
        others = processors.share_of_others()
    return _capacity_section(operations, capacity(operations), scale, others, folder)


def _operation(
    control: BlockingClient, url: str, producers: int, consumers: int, seconds: float
) -> LoadPoint:
    queue = f"mix-{producers}-{consumers}"
    control.create_queue(queue, durable=True, exist_ok=True)
    with client_group(control, queue) as crew:
        crew.come(client_specs(producers, consumers, url=url, queue=queue))
        crew.go()
        crew.begin()
        crew.watch(min(WARM_UP_S, seconds))
        first = crew.look()
        crew.watch(seconds)
        last = crew.rows[-1]
        crew.leave()
        crew.settle()
    control.delete_queue(queue)
    measured_s = last.at_s - first.at_s
    return LoadPoint(
        producers,
        consumers,
        (last.produced - first.produced) / measured_s,
        (last.consumed - first.consumed) / measured_s,
        measured_s,
    )


def _capacity_section(
    operations: list[LoadPoint], found: Capacity, scale: Scale, others: float, folder: Path
) -> ExperimentSection:
    by_each = {
        each: [
            operation
            for producers in scale.capacity_producers
            for operation in operations
            if operation.producers == producers
            and operation.consumers == max(1, round(producers * each))
        ]
        for each in scale.capacity_consumers_each
    }
    draw_panels(
        [
            Panel(
                "Capacity of a single queue",
                "clients",
                "messages through it a second",
                [
                    Line(
                        f"{each:g} consumers for each producer",
                        [float(operation.clients) for operation in line],
                        [operation.throughput_per_s for operation in line],
                    )
                    for each, line in by_each.items()
                ],
                levels={"plateau": found.throughput_per_s} if found.clients else {},
            )
        ],
        folder / "fig7.png",
        height_in=4.0,
    )
    most = max(operation.clients for operation in operations)
    return ExperimentSection(
        name="fig7",
        title="Capacity of a single queue",
        source="Replicated queues §7.3, figure 7",
        paper=(
            "Throughput rises with the clients, less than linearly, to a ceiling; the best mix is "
            "always one producer for two consumers."
        ),
        ours=f"C = {found.clients}: {found.reason}." if found.clients else found.reason,
        drawings=[Drawing("fig7.png", "The smaller of what goes in and what comes out.")],
        tables=[
            ReportTable(
                f"Each mix for {scale.capacity_seconds:g} s",
                ["producers", "consumers", "produced/s", "consumed/s", "state"],
                [
                    [
                        str(one.producers),
                        str(one.consumers),
                        f"{one.produced_per_s:,.0f}",
                        f"{one.consumed_per_s:,.0f}",
                        stability(one.produced_per_s, one.consumed_per_s).value,
                    ]
                    for one in operations
                ],
            )
        ],
        bars=[
            Bar(
                "clients tried, of the capacity that was found (it flattens)",
                most / found.clients if found.clients else None,
                TRIED_BEYOND,
                "×",
            )
        ],
        notes=disturbance(others),
        data={
            "capacity": {
                "accepted": found.accepted,
                "reason": found.reason,
                "clients": found.clients,
                "throughput_per_s": found.throughput_per_s if found.clients else None,
                "best_producers": found.best_producers,
                "best_consumers": found.best_consumers,
            },
            "operations": msgspec.to_builtins(operations),
        },
    )
