"""`tidegate bench alias`: what does it cost that messages go through a logical queue?

Strategy: one node; the same load as in `compare` goes in turn to a plain queue and to a logical one
with one replica on that node, so that each pair of runs is seconds apart and a slow drift of the
machine hits both alike. Who goes first alternates. The ratio is through/direct, pair by pair; its
mean has Student's interval, and the lower end of that must be above the bar.
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
    """How many pairs, and how long each run is."""

    pairs: int = 30
    seconds_per_run: float = 3.0
    # Messages per run; None finds as many as make a run of the wanted length.
    messages: int | None = None

    @staticmethod
    def quick() -> AliasOptions:
        """A short run that shows that it works, and no figure to quote."""
        return AliasOptions(pairs=2, messages=5_000)


class AliasReport(BarredReport, frozen=True):
    """Throughput through a logical queue, as a part of the direct one."""

    pairs: int
    messages_per_run: int
    through_per_s: float
    direct_per_s: float
    ratio: Estimate
    # msg/s through it and direct, pair by pair.
    runs: list[tuple[float, float]]
    # The share of the machine that processes of others took meanwhile.
    taken_by_others: float
    environment: dict[str, str]


def run_alias(options: AliasOptions, progress: Progress = lambda line: None) -> AliasReport:
    """Measure in interleaved pairs."""
    processors = Processors()
    runs: list[tuple[float, float]] = []
    with tidegate_server() as server:
        # Both are warm before anything counts.
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
    ratio = estimate([through / direct for through, direct in runs])
    # A few pairs bound nothing.
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
    """Print the figures, then the verdict."""
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
