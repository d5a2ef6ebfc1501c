"""Figures 5.4 to 5.9 and §5.6: sweeps of one parameter, with the mix measured at each value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.telesto.mix import PUT, QUEUES, READ_HIT, REQUEST, WAITING_READ, MixOptions
from tidegate_lab.papers.telesto.phases import (
    Progress,
    TelestoPlan,
    TelestoSetup,
    TelestoTrial,
    disturbances,
    format_throughput,
    run_trial,
)
from tidegate_lab.report import Drawing, ExperimentSection

CLIENTS_OF_PEAK = 0.95


class SweepValues(msgspec.Struct, frozen=True):
    """The values of each sweep."""

    clients: int = 90
    counts: Sequence[int] = (1, 2, 4, 8)
    # The value of the parameter that stays fixed while the other changes.
    fixed: int = 4
    retry_delays_ms: Sequence[int] = (10, 20, 50, 80, 100, 200)
    client_counts: Sequence[int] = (9, 90, 270)
    node_counts: Sequence[int] = (1, 2)

    @staticmethod
    def quick() -> SweepValues:
        return SweepValues(
            clients=9,
            counts=(1, 2),
            fixed=2,
            retry_delays_ms=(10, 50),
            client_counts=(9, 18),
            node_counts=(1, 2),
        )


def writers_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep the number of writers (figure 5.4)."""
    mix = MixOptions(clients=values.clients)
    trials = [
        run_trial(
            TelestoSetup(_counted(count, "writer"), mix, writers=count, connections=values.fixed),
            plan,
            progress,
        )
        for count in values.counts
    ]
    return _worker_sweep(
        "writers",
        "Writers",
        "Telesto §5.5.3, figure 5.4",
        ("More worker threads than database connections (25) gain nothing, and fewer do as well."),
        f"writers, with {values.fixed} store connections",
        values.counts,
        trials,
        folder,
    )


def connections_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep the number of store connections (figure 5.5)."""
    mix = MixOptions(clients=values.clients)
    trials = [
        run_trial(
            TelestoSetup(
                _counted(count, "store connection"), mix, writers=values.fixed, connections=count
            ),
            plan,
            progress,
        )
        for count in values.counts
    ]
    return _worker_sweep(
        "connections",
        "Store connections",
        "Telesto §5.5.3, figure 5.5",
        "The best is reached with 15 of 25 connections already: the database can do no more.",
        f"store connections, with {values.fixed} writers",
        values.counts,
        trials,
        folder,
    )


def both_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep writers and store connections together (figure 5.6)."""
    mix = MixOptions(clients=values.clients)
    trials = [
        run_trial(
            TelestoSetup(f"{count} of each", mix, writers=count, connections=count),
            plan,
            progress,
        )
        for count in values.counts
    ]
    return _worker_sweep(
        "both",
        "Writers and store connections together",
        "Telesto §5.5.3, figure 5.6",
        "Steep up to about 20 of each, then slowly down.",
        "writers and store connections",
        values.counts,
        trials,
        folder,
    )


def _worker_sweep(
    name: str,
    title: str,
    source: str,
    paper: str,
    x_label: str,
    counts: Sequence[int],
    trials: Sequence[TelestoTrial],
    folder: Path,
) -> ExperimentSection:
    best = max(trials, key=lambda trial: trial.messages_per_s.mean)
    worst = min(trials, key=lambda trial: trial.messages_per_s.mean)
    names = [str(count) for count in counts]
    _draw(name, x_label, names, trials, (PUT, WAITING_READ, REQUEST), folder)
    spread = best.messages_per_s.mean / worst.messages_per_s.mean
    over_one = best.messages_per_s.mean / trials[0].messages_per_s.mean
    return ExperimentSection(
        name=name,
        title=title,
        source=source,
        paper=paper,
        ours=(
            f"Best with {best.label}: {format_throughput(best.messages_per_s)}, {spread:.2f} "
            f"times the worst "
            f"and {over_one:.2f} times that with {counts[0]}. Group commit puts whatever waits "
            "into one transaction, so a single writer already keeps the store busy."
        ),
        drawings=[_drawing(name)],
        tables=[_table(x_label, names, trials, (PUT, WAITING_READ, REQUEST))],
        notes=[
            f"The mix uses {len(QUEUES)} queues, and a queue has one writer: more writers than "
            "that are idle.",
            *_doubts(trials),
        ],
        data=_data(trials),
    )


def retry_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep the retry delay of polling reads (figure 5.7), and compare with reads that wait."""
    waiting = run_trial(
        TelestoSetup("reads that wait", MixOptions(clients=values.clients)), plan, progress
    )
    polling = [
        run_trial(
            TelestoSetup(
                f"polling every {delay} ms",
                MixOptions(clients=values.clients, retry_delay_s=delay / 1e3),
            ),
            plan,
            progress,
        )
        for delay in values.retry_delays_ms
    ]
    best = max(polling, key=lambda trial: trial.messages_per_s.mean)
    leanest = min(polling, key=lambda trial: trial.packets_per_message)
    delays = [float(delay) for delay in values.retry_delays_ms]
    draw_panels(
        [
            Panel(
                "Throughput",
                "retry delay, ms",
                "per second",
                [
                    _throughput_line("messages", delays, polling),
                    _throughput_line("packets", delays, polling, packets=True),
                ],
                levels={"messages, waiting read": waiting.messages_per_s.mean},
            ),
            Panel(
                "Packets for each message",
                "retry delay, ms",
                "packets",
                [Line("packets", delays, [trial.packets_per_message for trial in polling])],
                levels={"waiting read": waiting.packets_per_message},
            ),
        ],
        folder / "retry.png",
    )
    names = [*(f"{delay} ms" for delay in values.retry_delays_ms), "waiting"]
    return ExperimentSection(
        name="retry",
        title="Retry delay of a polling reader",
        source="Telesto §5.5.3, figure 5.7",
        paper=(
            "Little effect on messages, fewer packets with a longer delay; best between 80 and "
            "100 ms."
        ),
        ours=(
            f"A read that waits moves {format_throughput(waiting.messages_per_s)} with "
            f"{waiting.packets_per_message:.2f} packets each; the best polling reader "
            f"({best.label}) {format_throughput(best.messages_per_s)} with "
            f"{best.packets_per_message:.2f}. "
            "There is nothing to tune."
        ),
        drawings=[
            Drawing("retry.png", "Polling by its delay; dotted: reads that wait at the node.")
        ],
        tables=[
            _table(
                "retry delay", names, [*polling, waiting], (PUT, READ_HIT, WAITING_READ, REQUEST)
            )
        ],
        bars=[
            Bar(
                "packets per message of the waiting read, of the leanest polling",
                waiting.packets_per_message / leanest.packets_per_message,
                1.0,
                "×",
                at_most=True,
                strict=True,
            ),
            Bar(
                "messages/s of the waiting read, of the fastest polling",
                waiting.messages_per_s.mean / best.messages_per_s.mean,
                1.0,
                "×",
            ),
        ],
        notes=_doubts([*polling, waiting]),
        data=_data([*polling, waiting]),
    )


def clients_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep the number of clients and nodes (figures 5.8 and 5.9)."""
    by_nodes = {
        nodes: [
            run_trial(
                TelestoSetup(
                    f"{clients} clients, {_counted(nodes, 'node')}",
                    MixOptions(clients=clients),
                    nodes=nodes,
                ),
                plan,
                progress,
            )
            for clients in values.client_counts
        ]
        for nodes in values.node_counts
    }
    names = [str(clients) for clients in values.client_counts]
    positions = [float(position) for position in range(len(names))]
    colours = ("#1f6fb2", "#e08a1e", "#2f9e6e", "#c2504d")

    def line(nodes: int, y: list[float], errors: list[float] | None, colour: str) -> Line:
        return Line(_counted(nodes, "node"), positions, y, errors, dashed=nodes > 1, colour=colour)

    draw_panels(
        [
            Panel(
                "Messages",
                "clients",
                "per second",
                [
                    line(
                        nodes,
                        [trial.messages_per_s.mean for trial in trials],
                        [trial.messages_per_s.half_width or 0.0 for trial in trials],
                        colour,
                    )
                    for (nodes, trials), colour in zip(by_nodes.items(), colours, strict=False)
                ],
                x_names=names,
                mark_best=True,
            ),
            Panel(
                "Response time of a put",
                "clients",
                "ms, with standard deviation",
                [
                    line(
                        nodes,
                        [trial.responses[PUT].mean_ms for trial in trials],
                        [trial.responses[PUT].deviation_ms for trial in trials],
                        colour,
                    )
                    for (nodes, trials), colour in zip(by_nodes.items(), colours, strict=False)
                ],
                x_names=names,
            ),
        ],
        folder / "clients.png",
    )
    alone = by_nodes[min(by_nodes)]
    peak = max(trial.messages_per_s.mean for trial in alone)
    most = alone[-1]
    several = by_nodes[max(by_nodes)]
    everyone = [trial for trials in by_nodes.values() for trial in trials]
    return ExperimentSection(
        name="clients",
        title="Clients and nodes",
        source="Telesto §5.5.3, figures 5.8 and 5.9",
        paper=(
            "Underloaded below 90 clients, a small but clear drop above; response time rises "
            "steadily. A second middleware gains nothing, since the database is the limit."
        ),
        ours=(
            f"{format_throughput(most.messages_per_s)} with {values.client_counts[-1]} clients, "
            f"{most.messages_per_s.mean / peak:.2f} of the peak. With {max(by_nodes)} nodes "
            f"{format_throughput(several[-1].messages_per_s)}: on two cores a second node "
            f"takes its processor "
            "from the first, and half the requests take one hop more."
        ),
        drawings=[_drawing("clients")],
        tables=[
            _table("clients, nodes", [t.label for t in everyone], everyone, (PUT, WAITING_READ))
        ],
        bars=[
            Bar(
                f"throughput at {values.client_counts[-1]} clients, of the peak",
                most.messages_per_s.mean / peak,
                CLIENTS_OF_PEAK,
                "×",
            )
        ],
        notes=_doubts(everyone),
        data=_data(everyone),
    )


def storeless_section(
    values: SweepValues, plan: TelestoPlan, progress: Progress, folder: Path
) -> ExperimentSection:
    """Sweep the clients on transient queues, which use no store (§5.6)."""
    kinds = {
        label: [
            run_trial(
                TelestoSetup(
                    f"{clients} clients, {label}", MixOptions(clients=clients, durable=durable)
                ),
                plan,
                progress,
            )
            for clients in values.client_counts
        ]
        for label, durable in (("durable", True), ("transient", False))
    }
    names = [str(clients) for clients in values.client_counts]
    positions = [float(position) for position in range(len(names))]
    colours = {"durable": "#1f6fb2", "transient": "#2f9e6e"}
    draw_panels(
        [
            Panel(
                "Messages",
                "clients",
                "per second",
                [
                    Line(
                        label,
                        positions,
                        [trial.messages_per_s.mean for trial in trials],
                        [trial.messages_per_s.half_width or 0.0 for trial in trials],
                        colour=colours[label],
                    )
                    for label, trials in kinds.items()
                ],
                x_names=names,
            ),
            Panel(
                "Response time of a put",
                "clients",
                "ms",
                [
                    Line(
                        label,
                        positions,
                        [trial.responses[PUT].mean_ms for trial in trials],
                        colour=colours[label],
                    )
                    for label, trials in kinds.items()
                ],
                x_names=names,
            ),
        ],
        folder / "storeless.png",
    )
    everyone = [trial for trials in kinds.values() for trial in trials]
    gains = [
        bare.messages_per_s.mean / stored.messages_per_s.mean
        for stored, bare in zip(kinds["durable"], kinds["transient"], strict=True)
    ]
    said_gains = ", ".join(
        f"{gain:.2f} × with {clients}"
        for gain, clients in zip(gains, values.client_counts, strict=True)
    )
    return ExperimentSection(
        name="storeless",
        title="Without the store",
        source="Telesto §5.6",
        paper="Could handle a much higher load, as tests without a database showed; no figures.",
        ours=(
            f"Transient queues: {said_gains} clients. What the store costs beyond that is latency; "
            "with many clients the node's own work is the limit either way."
        ),
        drawings=[_drawing("storeless")],
        tables=[_table("clients", [t.label for t in everyone], everyone, (PUT, WAITING_READ))],
        notes=_doubts(everyone),
        data=_data(everyone),
    )


# Shared by all sweeps


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _throughput_line(
    label: str, x: Sequence[float], trials: Sequence[TelestoTrial], *, packets: bool = False
) -> Line:
    figures = [trial.packets_per_s if packets else trial.messages_per_s for trial in trials]
    return Line(
        label, x, [figure.mean for figure in figures], [f.half_width or 0.0 for f in figures]
    )


def _draw(
    name: str,
    x_label: str,
    names: Sequence[str],
    trials: Sequence[TelestoTrial],
    kinds: Sequence[str],
    folder: Path,
) -> None:
    x = [float(position) for position in range(len(trials))]
    draw_panels(
        [
            Panel(
                "Throughput",
                x_label,
                "per second",
                [
                    _throughput_line("messages", x, trials),
                    _throughput_line("packets", x, trials, packets=True),
                ],
                x_names=names,
                mark_best=True,
            ),
            Panel(
                "Response time",
                x_label,
                "ms",
                [
                    Line(kind, x, [trial.responses[kind].mean_ms for trial in trials])
                    for kind in kinds
                    if all(kind in trial.responses for trial in trials)
                ],
                x_names=names,
            ),
        ],
        folder / f"{name}.png",
    )


def _drawing(name: str) -> Drawing:
    return Drawing(f"{name}.png", "Means; the bars are 95 % confidence intervals.")


def _table(
    what: str, names: Sequence[str], trials: Sequence[TelestoTrial], kinds: Sequence[str]
) -> ReportTable:
    def response(trial: TelestoTrial, kind: str) -> str:
        found = trial.responses.get(kind)
        return "–" if found is None else f"{found.mean_ms:.2f}"

    def row(name: str, trial: TelestoTrial) -> list[str]:
        interval = trial.messages_per_s.relative
        return [
            name,
            f"{trial.messages_per_s.mean:,.0f}",
            "–" if interval is None else f"± {100 * interval:.1f} %",
            f"{trial.packets_per_s.mean:,.0f}",
            f"{trial.packets_per_message:.2f}",
            *(response(trial, kind) for kind in kinds),
            f"{100 * trial.phases.worker_busy_share:.0f} %",
        ]

    return ReportTable(
        "Response times are means in milliseconds",
        [
            what,
            "messages/s",
            "95 %",
            "packets/s",
            "packets/message",
            *(f"{kind} ms" for kind in kinds),
            "node busy",
        ],
        [row(name, trial) for name, trial in zip(names, trials, strict=True)],
    )


def _doubts(trials: Sequence[TelestoTrial]) -> list[str]:
    """Return notes on imprecise means and on disturbances."""
    unsure = [trial.label for trial in trials if not trial.sure]
    doubts = ["Every mean has a 95 % confidence interval below 5 %."]
    if unsure:
        doubts = [
            "The 95 % confidence interval is NOT below 5 % of the mean, after all repeats "
            f"allowed, for: {', '.join(unsure)}."
        ]
    return [*doubts, *disturbances(trials)]


def _data(trials: Sequence[TelestoTrial]) -> dict[str, Any]:
    bare = [msgspec.structs.replace(trial, timings={}, rows=[]) for trial in trials]
    return {trial.label: {**msgspec.to_builtins(trial), "sure": trial.sure} for trial in bare}
