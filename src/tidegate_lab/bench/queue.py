"""`tidegate bench recording`: the cost of a node's telemetry recorder.

Two nodes share a store; one records telemetry and the other does not. The same load as in `compare`
goes to each in turn. The two runs of a pair are seconds apart, so that a slow drift of the machine
affects both alike. The first run of a pair alternates.

Two processes of the same program differ a little, for example by their memory layout. After some
pairs, both nodes are therefore restarted with exchanged roles.

The cost is the mean of 1 − with/without over the pairs, with Student's 95 % interval. The upper end
of the interval must be below the bar. The report also has the node's processor time per message,
which has less noise.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.table import Table

import tidegate
from tidegate.lab.bench.bars import Bar, BarredReport
from tidegate.lab.bench.compare import describe_machine
from tidegate.lab.bench.compare_table import bar_table
from tidegate.lab.bench.measurement import measure_throughput
from tidegate.lab.bench.processors import QUIET, Processors
from tidegate.lab.faults.deployment import deployed, joined_node
from tidegate.lab.peers.contenders import CONTENDERS, TIDEGATE
from tidegate.lab.telesto.confidence import Estimate, estimate

COST_MAX = 0.02
PAIRS_MIN = 10
ENABLED = "TIDEGATE_TELEMETRY__ENABLED"
CALIBRATION_MESSAGES = 20_000
Progress = Callable[[str], None]


class RecordingOptions(msgspec.Struct, frozen=True):
    """The number of pairs, the length of a run, and the number of pairs between restarts."""

    pairs: int = 30
    seconds_per_run: float = 2.0
    pairs_per_start: int = 6
    # Messages per run; None calibrates them so that a run takes `seconds_per_run`.
    messages: int | None = None

    @staticmethod
    def quick() -> RecordingOptions:
        """Return options for a short run, whose figures are not meaningful."""
        return RecordingOptions(pairs=2, pairs_per_start=2, messages=5_000)


class Run(msgspec.Struct, frozen=True):
    """The result of one load on one node."""

    messages_per_s: float
    # Processor time of the node's process, its recorder included.
    cpu_us_per_message: float


class RecordingReport(BarredReport, frozen=True):
    """The cost of recording as a share of the throughput, and of the processor time."""

    pairs: int
    messages_per_run: int
    messages_per_s: float
    messages_per_s_without: float
    cost: Estimate
    cpu_us_per_message: float
    cpu_us_per_message_without: float
    cpu_cost: Estimate
    runs: list[tuple[Run, Run]]
    # The share of the machine that other processes used during the run.
    taken_by_others: float
    environment: dict[str, str]


def run_recording(
    options: RecordingOptions, progress: Progress = lambda line: None
) -> RecordingReport:
    """Measure interleaved pairs and return the report."""
    processors = Processors()
    runs: list[tuple[Run, Run]] = []
    messages = options.messages
    while len(runs) < options.pairs:
        progress(f"starting two nodes ({len(runs)} of {options.pairs} pairs done)")
        with _two_nodes(first_records=(len(runs) // options.pairs_per_start) % 2 == 0) as nodes:
            # Calibration also warms up both nodes before the runs that count.
            found = [_messages_for(options.seconds_per_run, address) for address in nodes]
            messages = messages or max(found)
            for _ in range(min(options.pairs_per_start, options.pairs - len(runs))):
                pair = _pair(nodes, messages, recorded_first=len(runs) % 2 == 0)
                runs.append(pair)
                cost = 1 - pair[0].messages_per_s / pair[1].messages_per_s
                progress(
                    f"pair {len(runs)}: {pair[0].messages_per_s:,.0f} msg/s recorded, "
                    f"{pair[1].messages_per_s:,.0f} not: {100 * cost:+.1f} %"
                )
    assert messages is not None
    return build_report(runs, messages, processors.share_of_others())


@contextlib.contextmanager
def _two_nodes(*, first_records: bool) -> Iterator[tuple[str, str]]:
    """Start two nodes on one store; yield first the address of the node that records."""
    first, second = (
        {ENABLED: "true" if records else "false"} for records in (first_records, not first_records)
    )
    with (
        deployed(environment=first) as deployment,
        joined_node(deployment.store_url, deployment.folder, environment=second) as joined,
    ):
        pair = (deployment.addresses[0], joined.address)
        yield pair if first_records else (pair[1], pair[0])


def _pair(addresses: tuple[str, str], messages: int, *, recorded_first: bool) -> tuple[Run, Run]:
    recorded, not_recorded = addresses
    if recorded_first:
        return _run(recorded, messages), _run(not_recorded, messages)
    other = _run(not_recorded, messages)
    return _run(recorded, messages), other


def _run(address: str, messages: int) -> Run:
    with tidegate.connect(address) as mq:
        before_s = _cpu_s(mq, address)
        throughput = measure_throughput(CONTENDERS[TIDEGATE], _port(address), messages)
        cpu_s = _cpu_s(mq, address) - before_s
    return Run(throughput.messages_per_s, 1e6 * cpu_s / messages)


def _cpu_s(mq: tidegate.BlockingClient, address: str) -> float:
    return next(node.process_cpu_s for node in mq.stats().nodes if node.address == address)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _messages_for(seconds: float, address: str) -> int:
    """Return how many messages take the given seconds, at least 1,000."""
    return max(int(_run(address, CALIBRATION_MESSAGES).messages_per_s * seconds), 1000)


def build_report(runs: list[tuple[Run, Run]], messages: int, others: float) -> RecordingReport:
    """Build the report; its bar has no figure with fewer than `PAIRS_MIN` pairs."""
    cost = estimate([1 - with_.messages_per_s / without.messages_per_s for with_, without in runs])
    cpu_cost = estimate(
        [with_.cpu_us_per_message / without.cpu_us_per_message - 1 for with_, without in runs]
    )
    # With few pairs the interval is too wide to decide the bar.
    is_bound = cost.half_width is not None and len(runs) >= PAIRS_MIN
    upper = 100 * (cost.mean + (cost.half_width or 0.0)) if is_bound else None

    def median(which: int, read: Callable[[Run], float]) -> float:
        return statistics.median(read(pair[which]) for pair in runs)

    return RecordingReport(
        pairs=len(runs),
        messages_per_run=messages,
        messages_per_s=median(0, lambda run: run.messages_per_s),
        messages_per_s_without=median(1, lambda run: run.messages_per_s),
        cost=cost,
        cpu_us_per_message=median(0, lambda run: run.cpu_us_per_message),
        cpu_us_per_message_without=median(1, lambda run: run.cpu_us_per_message),
        cpu_cost=cpu_cost,
        bars=[
            Bar("cost of recording, upper 95 % bound", upper, 100 * COST_MAX, "%", True),
        ],
        runs=runs,
        taken_by_others=others,
        environment=describe_machine(),
    )


def render(report: RecordingReport, console: Console) -> None:
    """Print the figures, then the bar."""
    table = Table(title=f"Recording on and off, {report.pairs} interleaved pairs (medians)")
    for column in ("", "recorded", "not recorded", "cost, mean ± 95 %"):
        table.add_column(column, justify="right")
    table.add_row(
        "msg/s",
        f"{report.messages_per_s:,.0f}",
        f"{report.messages_per_s_without:,.0f}",
        _shown(report.cost),
    )
    table.add_row(
        "node's processor, µs per message",
        f"{report.cpu_us_per_message:.3f}",
        f"{report.cpu_us_per_message_without:.3f}",
        _shown(report.cpu_cost),
    )
    console.print(table)
    console.print(bar_table(report.bars))
    if report.taken_by_others > QUIET:
        console.print(
            f"Other processes took {100 * report.taken_by_others:.0f} % of the machine meanwhile.",
            style="yellow",
        )


def _shown(cost: Estimate) -> str:
    width = "?" if cost.half_width is None else f"{100 * cost.half_width:.2f}"
    return f"{100 * cost.mean:+.2f} ± {width} %"
