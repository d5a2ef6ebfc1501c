"""The report of a comparison: medians, ratios, and bars.

The report is built from medians over the rounds only. A bar whose systems were not measured has no
figure and is never met.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate_lab.loadgen.worker import Latency
from tidegate_lab.peers.contenders import CONTENDERS, TIDEGATE, TIDEGATE_BATCH, TIDEGATE_LONE

# Bars: requirements on measurements, and whether they are met.


class Bar(msgspec.Struct, frozen=True):
    """A requirement of the issue: a measured figure and its limit.

    By default the figure must be at least `limit`, with `at_most` at most. None for `figure` or
    `limit` means that it was not measured.
    """

    bar: str
    figure: float | None
    limit: float | None
    unit: str
    at_most: bool = False
    # True for a stricter or like-for-like requirement that the issue does not have.
    beyond_the_issue: bool = False
    # Half the width of the figure's 95 % interval; the limit must lie outside of the interval.
    half_width: float | None = None
    # True if a figure equal to the limit does not meet the bar.
    strict: bool = False

    @property
    def distinguishable(self) -> bool:
        """Whether the limit lies outside the figure's interval; True without an interval."""
        if self.figure is None or self.limit is None or self.half_width is None:
            return True
        return abs(self.figure - self.limit) > self.half_width

    @property
    def met(self) -> bool | None:
        """Whether the measurement meets the bar, and not by chance; None without a measurement."""
        if self.figure is None or self.limit is None:
            return None
        holds = self.figure <= self.limit if self.at_most else self.figure >= self.limit
        if self.strict and self.figure == self.limit:
            return False
        return holds and self.distinguishable

    @property
    def sign(self) -> str:
        """The required relation of the figure to the limit; strict if there is an interval."""
        if self.strict or self.half_width is not None:
            return "<" if self.at_most else ">"
        return "≤" if self.at_most else "≥"

    @property
    def verdict(self) -> str:
        """The result as text."""
        if self.met is None:
            return "not measured"
        if not self.distinguishable:
            return "not distinguishable"
        return "met" if self.met else "not met"


class BarredReport(msgspec.Struct, frozen=True):
    """A benchmark's report with bars."""

    bars: list[Bar]

    @property
    def met(self) -> bool:
        return all(bar.met for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with the result of each bar."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
            bar["verdict"] = struct.verdict
        return plain


RAW = ("rabbitmq raw classic", "rabbitmq raw quorum")
AIO_PIKA = ("rabbitmq aio-pika classic", "rabbitmq aio-pika quorum")
PIKA = ("rabbitmq pika classic", "rabbitmq pika quorum")


class CompareReport(BarredReport, frozen=True):
    """The medians of all rounds, with the rounds themselves."""

    throughput: dict[str, float]
    latency_ms_at_2000_per_s: dict[str, Latency]
    ratio: dict[str, float]
    rounds: dict[str, list[float]]
    latency_rounds: dict[str, list[Latency]]
    messages: dict[str, int]
    skipped: dict[str, str]
    failed: dict[str, str]
    notes: list[str]
    environment: dict[str, str]


def build_report(
    *,
    rounds: Mapping[str, Sequence[float]],
    latency_rounds: Mapping[str, Sequence[Latency]],
    messages: Mapping[str, int],
    skipped: Mapping[str, str],
    failed: Mapping[str, str],
    notes: Sequence[str],
    environment: Mapping[str, str],
) -> CompareReport:
    """Build the report of a comparison from the measurements of all rounds."""
    throughput = {name: statistics.median(figures) for name, figures in rounds.items() if figures}
    latency = {name: _median_latency(found) for name, found in latency_rounds.items() if found}
    return CompareReport(
        throughput=throughput,
        latency_ms_at_2000_per_s=latency,
        ratio=_ratios(throughput),
        bars=[*_throughput_bars(throughput), *_latency_bars(latency)],
        rounds={name: list(figures) for name, figures in rounds.items()},
        latency_rounds={name: list(found) for name, found in latency_rounds.items()},
        messages=dict(messages),
        skipped=dict(skipped),
        failed=dict(failed),
        notes=list(notes),
        environment=dict(environment),
    )


def _median_latency(found: Sequence[Latency]) -> Latency:
    return Latency(
        confirm_p50=statistics.median(latency.confirm_p50 for latency in found),
        confirm_p99=statistics.median(latency.confirm_p99 for latency in found),
        handler_p50=statistics.median(latency.handler_p50 for latency in found),
        handler_p99=statistics.median(latency.handler_p99 for latency in found),
    )


def _ratios(throughput: Mapping[str, float]) -> dict[str, float]:
    """Return Tidegate's throughput over that of each peer.

    pika puts one message at a time, so it is compared with Tidegate's single puts.
    """
    ratios: dict[str, float] = {}
    for peer, figure in throughput.items():
        if CONTENDERS[peer].is_ours:
            continue
        ours = throughput.get(TIDEGATE_LONE if peer in PIKA else TIDEGATE)
        if ours is not None:
            ratios[peer] = ours / figure
    return ratios


def _fastest(throughput: Mapping[str, float], names: Sequence[str]) -> float | None:
    # A queue type that was not measured might be the fastest, so None without it.
    if any(name not in throughput for name in names):
        return None
    return max(throughput[name] for name in names)


def _throughput_bars(throughput: Mapping[str, float]) -> list[Bar]:
    def bar(label: str, ours: str, peers: Sequence[str], limit: float) -> Bar:
        fastest = _fastest(throughput, peers)
        figure = throughput[ours] / fastest if fastest and ours in throughput else None
        return Bar(bar=label, figure=figure, limit=limit, unit="×")

    return [
        bar("put per message, over RabbitMQ's raw limit", TIDEGATE, RAW, 5.0),
        bar("put_many and batches, over RabbitMQ's raw limit", TIDEGATE_BATCH, RAW, 10.0),
        bar("put per message, over aio-pika", TIDEGATE, AIO_PIKA, 20.0),
        bar("put per message, over Redis streams", TIDEGATE, ["redis streams"], 1.0),
        bar("put per message, over NATS JetStream", TIDEGATE, ["nats jetstream"], 1.0),
        bar("one put at a time, over pika", TIDEGATE_LONE, PIKA, 1.0),
        msgspec.structs.replace(
            bar("put per message, over Redis's raw limit", TIDEGATE, ["redis streams raw"], 1.0),
            beyond_the_issue=True,
        ),
    ]


def _latency_bars(latency: Mapping[str, Latency]) -> list[Bar]:
    ours = latency.get(TIDEGATE)

    def bar(label: str, peer: str, read: Callable[[Latency], float], beyond: bool) -> Bar:
        theirs = latency.get(peer)
        return Bar(
            bar=f"put to {label}, not above {peer}",
            figure=read(ours) if ours and theirs else None,
            limit=read(theirs) if theirs else None,
            unit="ms",
            at_most=True,
            beyond_the_issue=beyond,
        )

    bars = []
    # The raw client is the stricter comparison; aio-pika is a Python client like ours.
    for (classic, quorum), beyond in ((RAW, False), (AIO_PIKA, True)):
        bars += [
            bar("confirm p50", classic, lambda found: found.confirm_p50, beyond),
            bar("confirm p99", classic, lambda found: found.confirm_p99, beyond),
            bar("handler p50", quorum, lambda found: found.handler_p50, beyond),
            bar("handler p99", quorum, lambda found: found.handler_p99, beyond),
        ]
    return bars


# Tables of a comparison: measurements first, then the bars.


def render(report: CompareReport, console: Console) -> None:
    """Print a report as tables, with skipped and failed systems below."""
    console.print(_throughput_table(report))
    if report.latency_ms_at_2000_per_s:
        console.print(_latency_table(report))
    console.print(bar_table(report.bars))
    for name, why in {**report.skipped, **report.failed}.items():
        console.print(f"{name}: not measured: {why}", style="yellow", markup=False)
    for note in report.notes:
        console.print(note, style="dim", markup=False)


def _throughput_table(report: CompareReport) -> Table:
    table = Table(title="Throughput, 256-byte messages, durable and confirmed, end to end")
    table.add_column("system")
    table.add_column("msg/s (median)", justify="right")
    table.add_column("rounds", justify="right")
    table.add_column("tidegate is", justify="right")
    for name, figure in sorted(report.throughput.items(), key=lambda entry: -entry[1]):
        ratio = report.ratio.get(name)
        table.add_row(
            name,
            f"{figure:,.0f}",
            " ".join(f"{one:,.0f}" for one in report.rounds[name]),
            "" if ratio is None else f"{ratio:.1f} ×",
        )
    return table


def _latency_table(report: CompareReport) -> Table:
    table = Table(title="Latency at 2 000 msg/s offered, milliseconds")
    table.add_column("system")
    for column in ("confirm p50", "confirm p99", "handler p50", "handler p99"):
        table.add_column(column, justify="right")
    for name, found in report.latency_ms_at_2000_per_s.items():
        table.add_row(
            name,
            f"{found.confirm_p50:.2f}",
            f"{found.confirm_p99:.2f}",
            f"{found.handler_p50:.2f}",
            f"{found.handler_p99:.2f}",
        )
    return table


def bar_table(bars: Sequence[Bar]) -> Table:
    """Return a table of bars with their limits and results."""
    table = Table(title="Bars")
    table.add_column("bar")
    table.add_column("wanted", justify="right")
    table.add_column("figure", justify="right")
    table.add_column("met")
    for bar in bars:
        limit = "–" if bar.limit is None else f"{bar.limit:.2f} {bar.unit}"
        table.add_row(
            f"{bar.bar} (beyond the issue)" if bar.beyond_the_issue else bar.bar,
            f"{bar.sign} {limit}",
            _found(bar),
            _verdict(bar),
        )
    return table


def _found(bar: Bar) -> str:
    if bar.figure is None:
        return "–"
    half = "" if bar.half_width is None else f" ± {bar.half_width:.2f}"
    return f"{bar.figure:.2f}{half} {bar.unit}"


def _verdict(bar: Bar) -> str:
    style = {True: "green", False: "red", None: "dim"}[bar.met]
    return f"[{style}]{bar.verdict}[/]"
