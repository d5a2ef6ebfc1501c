"""`tidegate bench alias`: the cost of a logical queue compared with a plain queue.

One node gets the same load as in `compare`, in turn through a plain queue and through a logical
queue with one replica on that node. The two runs of a pair are seconds apart, so that a slow drift
of the machine affects both alike. The first run of a pair alternates. The report has the mean of
through/direct over the pairs with Student's 95 % interval. The lower end of the interval must be
above the bar.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

import tidegate
from tidegate_lab.bench.compare import QUIET, Processors, describe_machine
from tidegate_lab.bench.compare_report import Bar, BarredReport, bar_table
from tidegate_lab.faults.deployment import deployed, joined_node
from tidegate_lab.loadgen.worker import measure_throughput
from tidegate_lab.papers.telesto.mix import MixOptions
from tidegate_lab.papers.telesto.phases import (
    Estimate,
    TelestoPlan,
    TelestoSetup,
    TelestoTrial,
    estimate,
    run_trial,
)
from tidegate_lab.peers.contenders import CONTENDERS, TIDEGATE
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.peers.tidegate_messages import LOGICAL

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
        found = [
            _run_alias(server.port, logical, CALIBRATION_MESSAGES) for logical in (True, False)
        ]
        messages = options.messages or max(int(max(found) * options.seconds_per_run), 1000)
        while len(runs) < options.pairs:
            if len(runs) % 2:
                direct = _run_alias(server.port, False, messages)
                runs.append((_run_alias(server.port, True, messages), direct))
            else:
                runs.append(
                    (
                        _run_alias(server.port, True, messages),
                        _run_alias(server.port, False, messages),
                    )
                )
            through, direct = runs[-1]
            progress(
                f"pair {len(runs)}: {through:,.0f} msg/s through the alias, {direct:,.0f} direct: "
                f"{through / direct:.3f}"
            )
    return build_alias_report(runs, messages, processors.share_of_others())


def _run_alias(port: int, logical: bool, messages: int) -> float:
    return measure_throughput(THROUGH if logical else DIRECT, port, messages).messages_per_s


def build_alias_report(
    runs: list[tuple[float, float]], messages: int, others: float
) -> AliasReport:
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


def render_alias(report: AliasReport, console: Console) -> None:
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


# `tidegate bench clients`: the throughput by number of clients (Telesto's figure 5.8).
#
# Telesto's mix runs with 9, 90 and 270 connected clients, each time on a fresh server. A round runs
# all three, so that a slow drift of the machine affects them alike. The bar compares the median
# throughput with the most clients to the highest median.


WANTED_OF_PEAK = 0.95
ClientsProgress = Callable[[str], None]


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


def run_clients(
    options: ClientsOptions, progress: ClientsProgress = lambda line: None
) -> ClientsReport:
    """Measure all numbers of clients in interleaved rounds and return the report."""
    plan = TelestoPlan(options.seconds, repeats_min=1, repeats_max=1, warm_up_s=options.warm_up_s)
    trials: dict[int, list[TelestoTrial]] = {count: [] for count in options.counts}
    for round_number in range(1, options.rounds + 1):
        for count in options.counts:
            setup = TelestoSetup(
                f"round {round_number}: {count} clients", MixOptions(clients=count)
            )
            trials[count].append(run_trial(setup, plan, progress))

    def medians(read: Callable[[TelestoTrial], float]) -> dict[str, float]:
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


def render_clients(report: ClientsReport, console: Console) -> None:
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


# `tidegate bench recording`: the cost of a node's telemetry recorder.
#
# Two nodes share a store; one records telemetry and the other does not. The same load as in
# `compare`
# goes to each in turn. The two runs of a pair are seconds apart, so that a slow drift of the
# machine
# affects both alike. The first run of a pair alternates.
#
# Two processes of the same program differ a little, for example by their memory layout. After some
# pairs, both nodes are therefore restarted with exchanged roles.
#
# The cost is the mean of 1 − with/without over the pairs, with Student's 95 % interval. The upper
# end of the interval must be below the bar. The report also has the node's processor time per
# message, which has less noise.


COST_MAX = 0.02
ENABLED = "TIDEGATE_TELEMETRY__ENABLED"
RecordingProgress = Callable[[str], None]


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


class RecordingRun(msgspec.Struct, frozen=True):
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
    runs: list[tuple[RecordingRun, RecordingRun]]
    # The share of the machine that other processes used during the run.
    taken_by_others: float
    environment: dict[str, str]


def run_recording(
    options: RecordingOptions, progress: RecordingProgress = lambda line: None
) -> RecordingReport:
    """Measure interleaved pairs and return the report."""
    processors = Processors()
    runs: list[tuple[RecordingRun, RecordingRun]] = []
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
    return build_recording_report(runs, messages, processors.share_of_others())


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


def _pair(
    addresses: tuple[str, str], messages: int, *, recorded_first: bool
) -> tuple[RecordingRun, RecordingRun]:
    recorded, not_recorded = addresses
    if recorded_first:
        return _run_recording(recorded, messages), _run_recording(not_recorded, messages)
    other = _run_recording(not_recorded, messages)
    return _run_recording(recorded, messages), other


def _run_recording(address: str, messages: int) -> RecordingRun:
    with tidegate.connect(address) as mq:
        before_s = _cpu_s(mq, address)
        throughput = measure_throughput(CONTENDERS[TIDEGATE], _port(address), messages)
        cpu_s = _cpu_s(mq, address) - before_s
    return RecordingRun(throughput.messages_per_s, 1e6 * cpu_s / messages)


def _cpu_s(mq: tidegate.BlockingClient, address: str) -> float:
    return next(node.process_cpu_s for node in mq.stats().nodes if node.address == address)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _messages_for(seconds: float, address: str) -> int:
    """Return how many messages take the given seconds, at least 1,000."""
    return max(int(_run_recording(address, CALIBRATION_MESSAGES).messages_per_s * seconds), 1000)


def build_recording_report(
    runs: list[tuple[RecordingRun, RecordingRun]], messages: int, others: float
) -> RecordingReport:
    """Build the report; its bar has no figure with fewer than `PAIRS_MIN` pairs."""
    cost = estimate([1 - with_.messages_per_s / without.messages_per_s for with_, without in runs])
    cpu_cost = estimate(
        [with_.cpu_us_per_message / without.cpu_us_per_message - 1 for with_, without in runs]
    )
    # With few pairs the interval is too wide to decide the bar.
    is_bound = cost.half_width is not None and len(runs) >= PAIRS_MIN
    upper = 100 * (cost.mean + (cost.half_width or 0.0)) if is_bound else None

    def median(which: int, read: Callable[[RecordingRun], float]) -> float:
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


def render_recording(report: RecordingReport, console: Console) -> None:
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
