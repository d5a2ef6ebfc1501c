"""Tables of a comparison: measurements first, then the bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.compare_report import CompareReport


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
