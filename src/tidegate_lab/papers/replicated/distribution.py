"""Figures 8 and 9: two replicas with randomly placed and with elected clients.

There are 4 producers and 8 consumers. In the median random placement (cluster.py) they run once
without any control and once with exchange of waiting messages. Then the product elects them. Each
producer puts the same number of messages, each consumer takes half as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.core.topology import MemberRole
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    ClientSpeeds,
    RateSeries,
    Scale,
    StableRates,
    TestCluster,
    average,
    cluster,
    connect_client,
    disturbance,
    median_placement,
    rates_of,
    series_of,
    two_replicas,
)
from tidegate_lab.papers.replicated.crew import ClientSpec, QueueTotalsRow, client_group
from tidegate_lab.papers.replicated.scenarios import watch
from tidegate_lab.report import Drawing, ExperimentSection, Progress

PRODUCERS, CONSUMERS = 4, 8
OFFERED = 0.9
# The paper's values for figures 8 and 9.
PAPER_DEFAULT_PER_MS, PAPER_ELECTED_PER_MS = 0.30, 0.35
PAPER_GAIN = PAPER_ELECTED_PER_MS / PAPER_DEFAULT_PER_MS
WITHIN = 0.05
# The longest duration of a run, in multiples of the expected one.
PATIENCE = 4.0
STANDSTILL_S = 3.0
DEFAULT, EXCHANGED, ELECTED = "as they came", "as they came, with exchange", "elected"


class Distribution(msgspec.Struct, frozen=True):
    """The measurement of one way to distribute the clients."""

    label: str
    rates: StableRates
    series: RateSeries
    # The time until the last consumer had its last message. `None` if messages remained at a
    # replica without consumers.
    seconds: float | None
    producers_at: dict[int, int]
    consumers_at: dict[int, int]


def distribution_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure all three distributions on real nodes, and return the section about them."""
    found: list[Distribution] = []
    with cluster() as nodes:
        processors = Processors()
        for label in (DEFAULT, EXCHANGED, ELECTED):
            runs = [
                _run(nodes, label, f"{label}-{turn}".replace(" ", "-").replace(",", ""), scale)
                for turn in range(scale.distribution_runs)
            ]
            one = msgspec.structs.replace(runs[0], rates=average([run.rates for run in runs]))
            found.append(one)
            progress(
                f"{label}: produced {one.rates.produced_per_s:,.0f}/s, consumed "
                f"{one.rates.consumed_per_s:,.0f}/s"
            )
        others = processors.share_of_others()
    return section_of(found, scale, others, folder)


def _run(nodes: TestCluster, label: str, queue: str, scale: Scale) -> Distribution:
    scaling = two_replicas(scale.replica_rate_per_s)
    nodes.create(queue, scaling)
    if label != ELECTED:
        nodes.hold_still(queue, scaling)
    offered_per_s = 2 * OFFERED * scale.replica_rate_per_s
    with client_group(nodes.control, queue) as crew:
        crew.come(_seats(nodes, label, queue, offered_per_s, scale))
        crew.begin()
        placed = crew.look()
        crew.go()
        needed_s = PRODUCERS * scale.messages_each_producer / offered_per_s
        in_time = False
        while not in_time and crew.rows[-1].at_s < PATIENCE * needed_s and not _stands(crew.rows):
            watch(crew, nodes, queue, 1.0, exchange=label == EXCHANGED)
            in_time = all(one.ended_s is not None for one in crew.standings())
        rows = list(crew.rows)
        crew.leave()
        crew.settle()
    return Distribution(
        label,
        rates_of(rows),
        series_of(rows),
        rows[-1].at_s if in_time else None,
        placed.producers_at,
        placed.consumers_at,
    )


def _stands(rows: Sequence[QueueTotalsRow]) -> bool:
    """Return whether nothing was put or taken for three seconds.

    Any messages left then wait at a replica without consumers.
    """
    before = [row for row in rows if row.at_s < rows[-1].at_s - STANDSTILL_S]
    return bool(before) and (before[-1].produced, before[-1].consumed) == (
        rows[-1].produced,
        rows[-1].consumed,
    )


def _seats(
    nodes: TestCluster, label: str, queue: str, offered_per_s: float, scale: Scale
) -> list[ClientSpec]:
    speeds = ClientSpeeds.offering(offered_per_s, PRODUCERS, CONSUMERS)
    first, second = sorted(nodes.serving(queue))
    producers, consumers = median_placement(PRODUCERS, CONSUMERS)
    places: list[tuple[MemberRole, int | None]] = [
        *((MemberRole.CONSUMER, first),) * consumers,
        *((MemberRole.CONSUMER, second),) * (CONSUMERS - consumers),
        *((MemberRole.PRODUCER, first),) * producers,
        *((MemberRole.PRODUCER, second),) * (PRODUCERS - producers),
    ]
    each = {
        MemberRole.PRODUCER: scale.messages_each_producer,
        MemberRole.CONSUMER: scale.messages_each_producer * PRODUCERS // CONSUMERS,
    }
    return [
        connect_client(
            number,
            role,
            nodes,
            queue,
            speeds,
            replica=None if label == ELECTED else place,
            messages=each[role],
        )
        for number, (role, place) in enumerate(places)
    ]


def section_of(
    found: list[Distribution], scale: Scale, others: float, folder: Path
) -> ExperimentSection:
    """Draw and judge the measurements: random placement, with exchange, elected."""
    default, exchanged, elected = found
    gain = elected.rates.consumed_per_s / max(default.rates.consumed_per_s, 1e-9)
    over_exchange = elected.rates.consumed_per_s / max(exchanged.rates.consumed_per_s, 1e-9)
    draw_panels(
        [
            Panel(
                one.label,
                "seconds",
                "messages a second" if one is default else "",
                [
                    Line("produced", one.series.at_s, one.series.produced_per_s, colour="#1f6fb2"),
                    Line("consumed", one.series.at_s, one.series.consumed_per_s, colour="#2f9e6e"),
                ],
            )
            for one in found
        ],
        folder / "fig8.png",
        same_scale=True,
    )
    return ExperimentSection(
        name="fig8",
        title="Clients spread as they came, and elected",
        source="Replicated queues §7.4, figures 8 and 9",
        paper=(
            "JORAM's default: production above consumption, less than 0.30 messages/ms; "
            "optimised: both at 0.35 messages/ms."
        ),
        ours=(
            f"As they came and held still: {default.rates.consumed_per_s:,.0f}/s out of "
            f"{default.rates.produced_per_s:,.0f}/s in; elected: "
            f"{elected.rates.consumed_per_s:,.0f}/s out of {elected.rates.produced_per_s:,.0f}/s, "
            f"{gain:.2f} times as much (the paper: {PAPER_GAIN:.2f}). Exchange alone brings the "
            f"first to {exchanged.rates.consumed_per_s:,.0f}/s. "
            + over_exchange_in_words(over_exchange)
        ),
        drawings=[
            Drawing(
                "fig8.png",
                f"{PRODUCERS} producers with {scale.messages_each_producer:,} messages each (the "
                f"paper: 10,000), {CONSUMERS} consumers; each replica may deliver "
                f"{scale.replica_rate_per_s:g} messages/s. The paper's axes are others: below "
                f"{PAPER_DEFAULT_PER_MS:.2f} messages/ms by default, {PAPER_ELECTED_PER_MS:.2f} "
                f"optimised, which is × {PAPER_GAIN:.2f}; here × {gain:.2f}.",
            )
        ],
        tables=[
            ReportTable(
                "Means over the time in which all clients are at work, without its edges",
                ["", "producers", "consumers", "produced/s", "consumed/s", "all done after"],
                [
                    [
                        one.label,
                        _split(one.producers_at),
                        _split(one.consumers_at),
                        f"{one.rates.produced_per_s:,.0f}",
                        f"{one.rates.consumed_per_s:,.0f}",
                        "left over" if one.seconds is None else f"{one.seconds:.0f} s",
                    ]
                    for one in found
                ],
            ),
            election_table(gain, over_exchange),
        ],
        bars=[
            Bar(
                "elected: production and consumption differ by, of the larger",
                elected.rates.imbalance,
                WITHIN,
                "",
                at_most=True,
            ),
            Bar("consumption of elected clients, of those as they came", gain, PAPER_GAIN, "×"),
        ],
        notes=[
            "As they came stands for JORAM's default, of which the paper says only that it spreads "
            "clients badly: a choice at random whatever the role, the middle one of all outcomes.",
            "The baseline of the bar has its exchange switched off. JORAM's default exchanged "
            "messages, too, and hardly made up for it; ours makes up for nearly all of it, so "
            "that beside our own exchange there is next to nothing left for election to gain.",
            f"Replicas have a stated limit of {scale.replica_rate_per_s:g} messages/s each, since "
            "two cores do not show what two machines did.",
            *disturbance(others),
        ],
        data={
            "messages_each_producer": scale.messages_each_producer,
            "gain": gain,
            "over_exchange": over_exchange,
            "distributions": msgspec.to_builtins(found),
        },
    )


def election_table(gain: float, over_exchange: float) -> ReportTable:
    """Return the gain of election over both baselines; the bar uses the weaker one."""
    return ReportTable(
        "What election brings: consumption of elected clients, of",
        ["clients as they came", "×", "the paper"],
        [
            ["held still: no exchange, no migration (the bar)", f"{gain:.2f}", f"{PAPER_GAIN:.2f}"],
            ["with exchange alone (no bar)", f"{over_exchange:.2f}", "not said"],
        ],
    )


def over_exchange_in_words(over_exchange: float) -> str:
    return f"Over exchange alone election brings {over_exchange:.2f} times as much."


def _split(at: dict[int, int]) -> str:
    return " / ".join(str(count) for _, count in sorted(at.items())) or "–"
