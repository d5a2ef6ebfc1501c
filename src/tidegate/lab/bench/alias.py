"""`tidegate bench alias`: the cost of a logical queue compared with a plain queue.

One node gets the same load as in `compare`, in turn through a plain queue and through a logical
queue with one replica on that node. The two runs of a pair are seconds apart, so that a slow drift
of the machine affects both alike. The first run of a pair alternates. The report has the mean of
through/direct over the pairs with Student's 95 % interval. The lower end of the interval must be
above the bar.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate.lab.bench.bars import Bar, BarredReport
from tidegate.lab.bench.compare import describe_machine
from tidegate.lab.bench.compare_table import bar_table
from tidegate.lab.bench.measurement import measure_throughput
from tidegate.lab.bench.processors import QUIET, Processors
from tidegate.lab.peers.contenders import CONTENDERS, TIDEGATE
from tidegate.lab.peers.tidegate_messages import LOGICAL
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.telesto.confidence import Estimate, estimate

RATIO_MIN = 0.95
PAIRS_MIN = 10
CALIBRATION_MESSAGES = 20_000
Progress = Callable[[str], None]

DIRECT = CONTENDERS[TIDEGATE]
THROUGH = msgspec.structs.replace(DIRECT, name="tidegate logical", settings={LOGICAL: "yes"})


class AliasOptions(msgspec.Struct, frozen=True):
    """The number of pairs and the length of the runs."""

    pairs: int = 30
    seconds_per_run: float = 3.0
    # Messages per run; None calibrates them so that a run takes `seconds_per_run`.
    messages: int | None = None

    @staticmethod
    def quick() -> AliasOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return AliasOptions(pairs=2, messages=5_000)


class AliasReport(BarredReport, frozen=True):
    """The throughput through a logical queue relative to a plain queue."""

    pairs: int
    messages_per_run: int
    through_per_s: float
    direct_per_s: float
    ratio: Estimate
    # Messages per second through the logical queue and directly, for each pair.
    runs: list[tuple[float, float]]
    # The share of the machine that other processes used during the run.
    taken_by_others: float
    environment: dict[str, str]


def run_alias(options: AliasOptions, progress: Progress = lambda line: None) -> AliasReport:
    """Measure interleaved pairs and return the report."""
    processors = Processors()
    runs: list[tuple[float, float]] = []
    with tidegate_server() as server:
        # Warm up both queues before the runs that count.
        found = [_run(server.port, logical, CALIBRATION_MESSAGES) for logical in (True, False)]
        messages = options.messages or max(int(max(found) * options.seconds_per_run), 1000)
        while len(runs) < options.pairs:
            if len(runs) % 2:
                direct = _run(server.port, False, messages)
                runs.append((_run(server.port, True, messages), direct))
            else:
                runs.append((_run(server.port, True, messages), _run(server.port, False, messages)))
            through, direct = runs[-1]
            progress(
                f"pair {len(runs)}: {through:,.0f} msg/s through the alias, {direct:,.0f} direct: "
                f"{through / direct:.3f}"
            )
    return build_report(runs, messages, processors.share_of_others())


def _run(port: int, logical: bool, messages: int) -> float:
    return measure_throughput(THROUGH if logical else DIRECT, port, messages).messages_per_s


def build_report(runs: list[tuple[float, float]], messages: int, others: float) -> AliasReport:
    """Build the report; its bar has no figure with fewer than `PAIRS_MIN` pairs."""
    ratio = estimate([through / direct for through, direct in runs])
    # With few pairs the interval is too wide to decide the bar.
    is_bound = ratio.half_width is not None and len(runs) >= PAIRS_MIN
    lower = ratio.mean - (ratio.half_width or 0.0) if is_bound else None
    return AliasReport(
        pairs=len(runs),
        messages_per_run=messages,
        through_per_s=statistics.median(through for through, _ in runs),
        direct_per_s=statistics.median(direct for _, direct in runs),
        ratio=ratio,
        bars=[Bar("throughput through the alias, lower 95 % bound", lower, RATIO_MIN, "of direct")],
        runs=runs,
        taken_by_others=others,
        environment=describe_machine(),
    )


def render(report: AliasReport, console: Console) -> None:
    """Print the figures, then the bar."""
    table = Table(title=f"A logical queue with one replica, {report.pairs} interleaved pairs")
    for column in ("through the alias", "direct", "ratio, mean ± 95 %"):
        table.add_column(column, justify="right")
    width = "?" if report.ratio.half_width is None else f"{report.ratio.half_width:.3f}"
    table.add_row(
        f"{report.through_per_s:,.0f} msg/s",
        f"{report.direct_per_s:,.0f} msg/s",
        f"{report.ratio.mean:.3f} ± {width}",
    )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took {100 * report.taken_by_others:.0f} % of the machine meanwhile.",
            style="yellow",
        )
