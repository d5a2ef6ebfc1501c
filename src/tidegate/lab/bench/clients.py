"""`tidegate bench clients`: the throughput by number of clients (Telesto's figure 5.8).

Telesto's mix runs with 9, 90 and 270 connected clients, each time on a fresh server. A round runs
all three, so that a slow drift of the machine affects them alike. The bar compares the median
throughput with the most clients to the highest median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate.lab.bench.bars import Bar, BarredReport
from tidegate.lab.bench.compare import describe_machine
from tidegate.lab.bench.compare_table import bar_table
from tidegate.lab.bench.processors import QUIET
from tidegate.lab.telesto.mix import MixOptions
from tidegate.lab.telesto.trial import Plan, Setup, Trial, run_trial

WANTED_OF_PEAK = 0.95
Progress = Callable[[str], None]


class ClientsOptions(msgspec.Struct, frozen=True):
    """The numbers of clients, and the length and number of the runs."""

    counts: Sequence[int] = (9, 90, 270)
    rounds: int = 3
    seconds: float = 6.0
    warm_up_s: float = 2.0

    @staticmethod
    def quick() -> ClientsOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return ClientsOptions(counts=(9, 18), rounds=1, seconds=1.0, warm_up_s=0.3)


class ClientsReport(BarredReport, frozen=True):
    """Medians by number of clients."""

    messages_per_s: dict[str, float]
    packets_per_s: dict[str, float]
    put_ms: dict[str, float]
    of_peak: float
    rounds: dict[str, list[float]]
    # The largest share of the machine that other processes used during a run.
    taken_by_others: float
    environment: dict[str, str]


def run_clients(options: ClientsOptions, progress: Progress = lambda line: None) -> ClientsReport:
    """Measure all numbers of clients in interleaved rounds and return the report."""
    plan = Plan(options.seconds, repeats_min=1, repeats_max=1, warm_up_s=options.warm_up_s)
    trials: dict[int, list[Trial]] = {count: [] for count in options.counts}
    for round_number in range(1, options.rounds + 1):
        for count in options.counts:
            setup = Setup(f"round {round_number}: {count} clients", MixOptions(clients=count))
            trials[count].append(run_trial(setup, plan, progress))

    def medians(read: Callable[[Trial], float]) -> dict[str, float]:
        return {str(count): statistics.median(map(read, found)) for count, found in trials.items()}

    throughput = medians(lambda trial: trial.messages_per_s.mean)
    most = str(max(options.counts))
    of_peak = throughput[most] / max(throughput.values())
    return ClientsReport(
        messages_per_s=throughput,
        packets_per_s=medians(lambda trial: trial.packets_per_s.mean),
        put_ms=medians(lambda trial: trial.responses["put"].mean_ms),
        of_peak=of_peak,
        bars=[Bar(f"throughput at {most} clients, of the peak", of_peak, WANTED_OF_PEAK, "×")],
        rounds={
            str(count): [trial.messages_per_s.mean for trial in found]
            for count, found in trials.items()
        },
        taken_by_others=max(one.taken_by_others for found in trials.values() for one in found),
        environment=describe_machine(),
    )


def render(report: ClientsReport, console: Console) -> None:
    """Print the figures, then the bar."""
    table = Table(title="Telesto's mix by number of clients (medians)")
    for column in ("clients", "msg/s", "packets/s", "put ms", "rounds"):
        table.add_column(column, justify="right")
    for count, figure in report.messages_per_s.items():
        table.add_row(
            count,
            f"{figure:,.0f}",
            f"{report.packets_per_s[count]:,.0f}",
            f"{report.put_ms[count]:.2f}",
            " ".join(f"{one:,.0f}" for one in report.rounds[count]),
        )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took up to {100 * report.taken_by_others:.0f} % of the machine "
            "meanwhile.",
            style="yellow",
        )
