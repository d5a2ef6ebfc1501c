"""Table 5.3: the phases of a request, from two samples of the nodes' stats.

The node measures the phases of each synchronous client's cycle (broker/stats.py). Two checks
accompany them. The phases must add up to the measured total. The total must also agree with the
clients' counts: a client with one request in progress has a mean cycle of
`clients × seconds / requests`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_distribution, draw_rows, draw_shares
from tidegate.telemetry.stats import ClusterStats, Durations, NodeStats
from tidegate_lab.bench.compare import QUIET, Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.telesto.crew import running_mix
from tidegate_lab.papers.telesto.mix import (
    BINS,
    PUT,
    READ_HIT,
    READ_MISS,
    REQUEST,
    TYPES,
    WAITING_READ,
    CounterWindow,
    MixOptions,
    SecondRow,
    Timing,
    window_of,
)
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.report import Drawing, ExperimentSection


class PhaseTable(msgspec.Struct, frozen=True):
    """Mean microseconds per request of a synchronous client."""

    requests: int
    wait_client_us: float
    parse_us: float
    store_us: float
    wait_message_us: float
    respond_us: float
    total_us: float
    # The total according to the clients' counts.
    total_by_clients_us: float
    # The mean wait of the requests that waited for the store.
    store_us_per_put: float
    # Idle time of the nodes' processes, per request.
    worker_idle_us: float
    worker_busy_share: float
    messages_per_commit: float
    commits_per_s: float

    @property
    def sum_us(self) -> float:
        return (
            self.wait_client_us
            + self.parse_us
            + self.store_us
            + self.wait_message_us
            + self.respond_us
        )

    @property
    def sum_over_total(self) -> float | None:
        return self.sum_us / self.total_us if self.total_us else None

    @property
    def clients_over_total(self) -> float | None:
        return self.total_by_clients_us / self.total_us if self.total_us else None

    @property
    def store_share(self) -> float | None:
        """The store's fraction of the time inside the node: parsing, store, responding."""
        inside = self.parse_us + self.store_us + self.respond_us
        return self.store_us / inside if inside else None

    @property
    def store_share_with_client(self) -> float | None:
        """The store's fraction of the whole cycle, without the wait for a message.

        Telesto's clients waited for messages by polling.
        """
        rest = self.sum_us - self.wait_message_us
        return self.store_us / rest if rest else None


def phase_table(before: ClusterStats, after: ClusterStats, clients: int) -> PhaseTable:
    """Return the phases between two samples, over all nodes."""
    earlier = {node.member_id: node for node in before.nodes}
    pairs = [(earlier[node.member_id], node) for node in after.nodes]
    seconds = sum(late.uptime_s - early.uptime_s for early, late in pairs) / len(pairs)

    def gained(name: str) -> tuple[int, float]:
        count, sum_us = 0, 0.0
        for early, late in pairs:
            old: Durations = getattr(early.phases, name)
            new: Durations = getattr(late.phases, name)
            count += new.count - old.count
            sum_us += 1e3 * (new.count * new.mean_ms - old.count * old.mean_ms)
        return count, sum_us

    def total(read: str) -> float:
        return float(sum(getattr(late, read) - getattr(early, read) for early, late in pairs))

    requests, total_us = gained("total")
    each = max(requests, 1)
    stored, store_us = gained("store")
    busy_s = total("process_cpu_s")
    answers = total("packets_out")
    commits = total("commits")
    return PhaseTable(
        requests=requests,
        wait_client_us=gained("wait_client")[1] / each,
        parse_us=gained("parse")[1] / each,
        store_us=store_us / each,
        wait_message_us=gained("wait_message")[1] / each,
        respond_us=gained("respond")[1] / each,
        total_us=total_us / each,
        total_by_clients_us=1e6 * clients * seconds / max(answers, 1),
        store_us_per_put=store_us / max(stored, 1),
        worker_idle_us=1e6 * max(seconds * len(pairs) - busy_s, 0.0) / max(answers, 1),
        worker_busy_share=busy_s / (seconds * len(pairs)),
        messages_per_commit=_messages_per_commit(pairs),
        commits_per_s=commits / seconds,
    )


def _messages_per_commit(pairs: list[tuple[NodeStats, NodeStats]]) -> float:
    commits = sum(late.commits - early.commits for early, late in pairs)
    messages = sum(
        late.commits * late.messages_per_commit - early.commits * early.messages_per_commit
        for early, late in pairs
    )
    return messages / commits if commits else 0.0


# Table 5.3: the phases of a request, next to Telesto's.


OFF_BY_MAX = 0.02
# The report prints "9.574 µs" for the database; the shares next to it show that 9,574 is meant.
PAPER_US = {
    "waiting for client": 79.0,
    "parsing": 14.0,
    "store": 9574.0,
    "responding": 22.0,
}
PAPER_STORE_SHARE = 0.988


def measure_phases(clients: int, plan: TelestoPlan, progress: Progress) -> TelestoTrial:
    """Measure the default mix with its phases."""
    setup = TelestoSetup(f"phases, {clients} clients", MixOptions(clients=clients))
    return run_trial(setup, plan, progress)


def phases_section(trial: TelestoTrial, folder: Path) -> ExperimentSection:
    """Return the section with the table of phases and its figure."""
    table = trial.phases
    ours = _ours_us(table)
    draw_shares(
        {
            "Telesto": _shares(PAPER_US),
            "Tidegate, per request": _shares(ours, without=("waiting for a message",)),
            "Tidegate, inside the node": _shares(
                ours, without=("waiting for a message", "waiting for client")
            ),
        },
        folder / "phases.png",
        title="Where the time of a request goes",
        x_label="share of the time, without the wait for a message",
    )
    store_share = table.store_share
    return ExperimentSection(
        name="phases",
        title="Phases of a request",
        source="Telesto §5.5.2, table 5.3",
        paper=(
            "98.8 % of a worker's time is spent waiting for the database; about half of a response "
            "time is the network."
        ),
        ours=(
            f"{100 * (store_share or 0):.1f} % of the time inside the node is waiting for the "
            f"store, {100 * (table.store_share_with_client or 0):.1f} % of the cycle as a "
            f"connection sees it. A put waits {table.store_us_per_put / 1e3:.2f} ms for a commit "
            f"that it shares with {max(table.messages_per_commit - 1, 0):.1f} others; reads never "
            "wait for the store."
        ),
        drawings=[
            Drawing(
                "phases.png",
                "Telesto's worker waits for the next request of anyone; our connection waits for "
                "its own client, on the same two cores as the node: hence the third bar.",
            )
        ],
        tables=[_table(table, ours), _worker_table(table)],
        bars=[
            Bar(
                "phases add up to the node's total, off by",
                None if table.sum_over_total is None else abs(table.sum_over_total - 1),
                OFF_BY_MAX,
                "×",
                at_most=True,
            ),
            Bar(
                "the node's total is what the clients' counts say, off by",
                None if table.clients_over_total is None else abs(table.clients_over_total - 1),
                OFF_BY_MAX,
                "×",
                at_most=True,
            ),
        ],
        notes=[
            "A cycle runs from the end of one answer to the end of the next, on connections that "
            "ask one thing at a time. Bytes that wait in a socket while the node is busy count as "
            "waiting for the client; waiting in line for a commit counts as store, for the turn "
            "to be answered as responding.",
            "The clients' total is clients × seconds / answers: it knows nothing of the node's "
            "clocks.",
            *disturbances([trial]),
        ],
        data={"phases": msgspec.to_builtins(table), "store_share": store_share},
    )


def _ours_us(table: PhaseTable) -> dict[str, float]:
    return {
        "waiting for client": table.wait_client_us,
        "parsing": table.parse_us,
        "store": table.store_us,
        "waiting for a message": table.wait_message_us,
        "responding": table.respond_us,
    }


def _shares(parts_us: dict[str, float], without: tuple[str, ...] = ()) -> dict[str, float]:
    kept = {name: part for name, part in parts_us.items() if name not in without}
    whole = sum(kept.values()) or 1.0
    return {name: part / whole for name, part in kept.items()}


def _table(table: PhaseTable, ours: dict[str, float]) -> ReportTable:
    shares = _shares(ours, without=("waiting for a message",))
    paper = _shares(PAPER_US)

    def cells(name: str) -> list[str]:
        theirs = PAPER_US.get(name)
        return [
            name,
            "–" if theirs is None else f"{theirs:,.0f}",
            "–" if theirs is None else f"{100 * paper[name]:.2f} %",
            f"{ours[name]:,.1f}",
            f"{100 * shares[name]:.2f} %" if name in shares else "–",
        ]

    return ReportTable(
        f"Mean of {table.requests:,} requests, microseconds; shares without the wait for a message",
        ["phase", "Telesto µs", "Telesto", "Tidegate µs", "Tidegate"],
        [
            *(cells(name) for name in ours),
            ["sum", f"{sum(PAPER_US.values()):,.0f}", "", f"{table.sum_us:,.1f}", ""],
            ["total measured by the node", "–", "", f"{table.total_us:,.1f}", ""],
            ["total by the clients' counts", "–", "", f"{table.total_by_clients_us:,.1f}", ""],
        ],
    )


def _worker_table(table: PhaseTable) -> ReportTable:
    return ReportTable(
        "The worker: Telesto had 25 threads, a node is one process with one event loop",
        ["", "Telesto", "Tidegate"],
        [
            ["idle before a request, µs", "79", f"{table.worker_idle_us:,.1f}"],
            ["busy", "–", f"{100 * table.worker_busy_share:.0f} %"],
            ["commits per second", "–", f"{table.commits_per_s:,.0f}"],
            ["messages per commit", "1", f"{table.messages_per_commit:.1f}"],
        ],
    )


# Figures 5.1, 5.2 and 5.3: throughput and response time over time, and their distribution.
#
# One long run of the default mix. Reads wait at the node. Every tenth read first asks without
# waiting, so that response times of hits and misses can be shown without the wait for a message.
# Drift compares the mean of the later half of the run with the earlier half (with `--hours 2`: the
# second hour with the first).


GLANCE_EVERY = 10
SEGMENTS = 10
POINTS_MAX = 120
DRIFT_MAX = 0.05
# Requests that the node answers without waiting for another client.
ANSWERED_AT_ONCE = (PUT, READ_HIT, READ_MISS)


def measure_stability(clients: int, seconds: float, progress: Progress) -> TelestoTrial:
    """Measure the long run."""
    mix = MixOptions(clients=clients, glance_every=GLANCE_EVERY)
    plan = TelestoPlan(
        seconds=seconds / SEGMENTS,
        repeats_min=SEGMENTS,
        repeats_max=SEGMENTS,
        warm_up_s=min(2.0, seconds / 5),
    )
    return run_trial(TelestoSetup(f"{clients} clients for {seconds:,.0f} s", mix), plan, progress)


def stability_section(trial: TelestoTrial, seconds: float, folder: Path) -> ExperimentSection:
    """Return the section on figures 5.1 and 5.2."""
    drift = drift_of(trial.rounds)
    interval_s = max(1, math.ceil(len(trial.rows) / POINTS_MAX))
    _draw_over_time(trial.rows, interval_s, folder / "stability.png")
    deviation = max(trial.responses[kind].deviation_ms for kind in ANSWERED_AT_ONCE)
    return ExperimentSection(
        name="stability",
        title="Throughput and response time over time",
        source="Telesto §5.5.1, figures 5.1 and 5.2",
        paper=(
            "Two hours, fairly stable; three packets for each message; response times fluctuate "
            "with a standard deviation below 25 ms; misses slightly faster than the rest."
        ),
        ours=(
            f"{seconds:,.0f} s, {format_throughput(trial.messages_per_s)}; "
            f"{trial.packets_per_message:.2f} packets for each message; standard deviation up to "
            f"{deviation:.1f} ms; misses take {_mean(trial, READ_MISS):.2f} ms, hits "
            f"{_mean(trial, READ_HIT):.2f} ms, puts {_mean(trial, PUT):.2f} ms."
        ),
        drawings=[
            Drawing(
                "stability.png",
                f"Measured every second, averaged over {interval_s} s. A waiting read includes the "
                "time until somebody sends the message.",
            )
        ],
        tables=[_response_table(trial)],
        bars=[Bar("drift of the mean, later half to earlier", drift, DRIFT_MAX, "×", at_most=True)],
        notes=[
            "Every message was accounted for: taken, or still in its queue at the end "
            f"({trial.left_over} were).",
            *disturbances([trial]),
        ],
        data={
            "drift": drift,
            "segments_messages_per_s": trial.rounds,
            "packets_per_message": trial.packets_per_message,
            "seconds": [
                {
                    "second": position,
                    "messages": row.messages,
                    "packets": row.packets,
                    "response_ms": _means_ms([row]),
                }
                for position, row in enumerate(trial.rows)
            ],
        },
    )


def distribution_section(trial: TelestoTrial, folder: Path) -> ExperimentSection:
    """Return the section on figure 5.3."""
    chosen = {kind: trial.timings[kind] for kind in ANSWERED_AT_ONCE if kind in trial.timings}
    draw_distribution(
        {kind: [count / timing.count for count in timing.bins] for kind, timing in chosen.items()},
        folder / "distribution.png",
        title="Response time",
        x_label="milliseconds, in bins of one; cut where 99.9 % lie to the left",
        bin_width=1.0,
    )
    everything = _merged(list(chosen.values()))
    above_one_second = everything.bins[BINS - 1]
    return ExperimentSection(
        name="distribution",
        title="Distribution of the response time",
        source="Telesto §5.5.1, figure 5.3",
        paper="Roughly a normal distribution in bins of 1 ms, no value above one second.",
        ours=(
            f"Median {1e3 * everything.percentile_s(0.5):.2f} ms, 99 % within "
            f"{1e3 * everything.percentile_s(0.99):.1f} ms, the longest of "
            f"{everything.count:,} took {1e3 * everything.max_s:.0f} ms; skewed to the right "
            "rather than normal, since a put waits for the commit before its own at most."
        ),
        drawings=[
            Drawing(
                "distribution.png",
                "Puts, and reads that do not wait: what the node answers from what it has.",
            )
        ],
        bars=[
            Bar("response times above one second", float(above_one_second), 0.0, "", at_most=True)
        ],
        data={
            kind: {"count": timing.count, "bins_of_1_ms": _trimmed(timing.bins)}
            for kind, timing in chosen.items()
        },
    )


def drift_of(segments: list[float]) -> float:
    """Return the difference of the later half's mean from the earlier one's, as a fraction."""
    half = len(segments) // 2
    if not half:
        return math.nan
    earlier = statistics.fmean(segments[:half])
    later = statistics.fmean(segments[-half:])
    return abs(later - earlier) / earlier


def _mean(trial: TelestoTrial, kind: str) -> float:
    found = trial.responses.get(kind)
    return math.nan if found is None else found.mean_ms


def _merged(timings: list[Timing]) -> Timing:
    total = Timing()
    for timing in timings:
        total = total.plus(timing)
    return total


def _trimmed(bins: list[int]) -> list[int]:
    last = max((index for index, count in enumerate(bins) if count), default=-1)
    return bins[: last + 1]


def _means_ms(rows: list[SecondRow]) -> dict[str, float]:
    sums: dict[str, tuple[int, float]] = {}
    for row in rows:
        for kind, (count, sum_s) in row.responses.items():
            before = sums.get(kind, (0, 0.0))
            sums[kind] = (before[0] + count, before[1] + sum_s)
    return {kind: 1e3 * sum_s / count for kind, (count, sum_s) in sums.items() if count}


def _draw_over_time(rows: list[SecondRow], interval_s: int, file: Path) -> None:
    groups = [rows[at : at + interval_s] for at in range(0, len(rows) - interval_s + 1, interval_s)]
    in_minutes = len(rows) > 300
    unit_s = 60.0 if in_minutes else 1.0
    times = [(position + 0.5) * interval_s / unit_s for position in range(len(groups))]
    means = [_means_ms(group) for group in groups]

    def per_second(read: str) -> list[float]:
        return [sum(getattr(row, read) for row in group) / len(group) for group in groups]

    def response(kinds: tuple[str, ...]) -> list[Line]:
        lines = []
        for kind in kinds:
            known = [at for at, found in enumerate(means) if kind in found]
            lines.append(Line(kind, [times[at] for at in known], [means[at][kind] for at in known]))
        return lines

    x_label = "minutes" if in_minutes else "seconds"
    draw_rows(
        [
            Panel(
                "Throughput",
                x_label,
                "per second",
                [
                    Line("packets", times, per_second("packets")),
                    Line("messages", times, per_second("messages")),
                ],
            ),
            Panel(
                "Response time of what needs nobody else",
                x_label,
                "ms",
                response(ANSWERED_AT_ONCE),
            ),
            Panel(
                "Including the wait for another client",
                x_label,
                "ms",
                response((WAITING_READ, REQUEST)),
            ),
        ],
        file,
    )


def _response_table(trial: TelestoTrial) -> ReportTable:
    return ReportTable(
        "Response time as clients see it, milliseconds",
        ["request", "count", "mean", "standard deviation", "median", "99 %", "longest"],
        [
            [
                kind,
                f"{found.count:,}",
                f"{found.mean_ms:.2f}",
                f"{found.deviation_ms:.2f}",
                f"{found.p50_ms:.2f}",
                f"{found.p99_ms:.2f}",
                f"{found.max_ms:.1f}",
            ]
            for kind, found in trial.responses.items()
        ],
    )


# A trial: one configuration of the system under the mix, measured until the mean is precise.
#
# A trial uses a fresh server with an empty store. After a warm-up it measures windows of equal
# length, each of which counts as one repeat. It stops when the 95 % interval of the message
# throughput is below 5 % of the mean, but not before `repeats_min` and not after `repeats_max`
# windows. If the interval is still too wide, `sure` is false.


Progress = Callable[[str], None]


class TelestoSetup(msgspec.Struct, frozen=True):
    """The configuration to measure."""

    label: str
    mix: MixOptions = MixOptions()
    nodes: int = 1
    writers: int | None = None
    connections: int | None = None

    def settings(self) -> dict[str, str]:
        chosen = {
            "TIDEGATE_NODE__WRITERS": self.writers,
            "TIDEGATE_STORE__CONNECTIONS": self.connections,
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}


class TelestoPlan(msgspec.Struct, frozen=True):
    """The length and number of windows."""

    seconds: float = 5.0
    repeats_min: int = 3
    repeats_max: int = 8
    warm_up_s: float = 2.0


class ResponseTime(msgspec.Struct, frozen=True):
    """The response time of one type of request, in milliseconds."""

    count: int
    mean_ms: float
    deviation_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class TelestoTrial(msgspec.Struct, frozen=True):
    """The measurement of one configuration."""

    label: str
    setup: TelestoSetup
    messages_per_s: Estimate
    packets_per_s: Estimate
    packets_per_message: float
    misses_per_message: float
    responses: dict[str, ResponseTime]
    phases: PhaseTable
    left_over: int
    rounds: list[float]
    # The fraction of the machine that other processes used.
    taken_by_others: float
    # Large, and needed by some figures only; the JSON of sweeps leaves them out.
    timings: dict[str, Timing] = {}
    rows: list[SecondRow] = []

    @property
    def sure(self) -> bool:
        return self.messages_per_s.sure


def run_trial(setup: TelestoSetup, plan: TelestoPlan, progress: Progress) -> TelestoTrial:
    """Start nodes and clients, measure, and stop them."""
    with (
        tidegate_server(nodes=setup.nodes, settings=setup.settings()) as server,
        running_mix(server.ports, setup.mix) as crew,
    ):
        crew.work_for(plan.warm_up_s)
        windows: list[CounterWindow] = []
        first = before = crew.sample()
        numbers = crew.numbers()
        processors = Processors()
        while len(windows) < plan.repeats_max:
            crew.work_for(plan.seconds)
            after = crew.sample()
            windows.append(window_of(before, after))
            before = after
            sure = estimate([window.messages_per_s for window in windows])
            if len(windows) >= plan.repeats_min and sure.sure:
                break
        phases = phase_table(numbers, crew.numbers(), setup.mix.clients)
        taken_by_others = processors.share_of_others()
        left_over = crew.stop()
    trial = _trial(setup, windows, window_of(first, before), phases, left_over, taken_by_others)
    progress(
        f"{setup.label}: {format_throughput(trial.messages_per_s)}{_disturbance(taken_by_others)}"
    )
    return trial


def disturbances(trials: Sequence[TelestoTrial]) -> list[str]:
    """Return a note if other processes used the machine during these trials."""
    most = max(trial.taken_by_others for trial in trials)
    if most <= QUIET:
        return []
    return [
        f"Other processes took up to {100 * most:.0f} % of the machine meanwhile: differences "
        "between settings may be theirs."
    ]


def _disturbance(taken_by_others: float) -> str:
    if taken_by_others <= QUIET:
        return ""
    return f" (others took {100 * taken_by_others:.0f} % of the machine)"


def format_throughput(figure: Estimate) -> str:
    """Format a throughput with its interval."""
    if figure.half_width is None:
        return f"{figure.mean:,.0f} messages/s"
    doubt = "" if figure.sure else f" (not below 5 % after {figure.repeats} repeats)"
    return f"{figure.mean:,.0f} ± {figure.half_width:,.0f} messages/s{doubt}"


def _trial(
    setup: TelestoSetup,
    windows: list[CounterWindow],
    whole: CounterWindow,
    phases: PhaseTable,
    left_over: int,
    taken_by_others: float,
) -> TelestoTrial:
    return TelestoTrial(
        label=setup.label,
        setup=setup,
        messages_per_s=estimate([window.messages_per_s for window in windows]),
        packets_per_s=estimate([window.packets_per_s for window in windows]),
        packets_per_message=whole.packets_per_message,
        misses_per_message=whole.misses / max(whole.messages, 1),
        responses={
            kind: _response(whole.timings[kind])
            for kind in TYPES
            if kind in whole.timings and whole.timings[kind].count
        },
        phases=phases,
        left_over=left_over,
        rounds=[window.messages_per_s for window in windows],
        taken_by_others=taken_by_others,
        timings=whole.timings,
        rows=[row for window in windows for row in window.rows],
    )


def _response(timing: Timing) -> ResponseTime:
    return ResponseTime(
        count=timing.count,
        mean_ms=1e3 * timing.mean_s,
        deviation_ms=1e3 * timing.deviation_s,
        p50_ms=1e3 * timing.percentile_s(0.50),
        p99_ms=1e3 * timing.percentile_s(0.99),
        max_ms=1e3 * timing.max_s,
    )


# The precision of a mean: Student's 95 % confidence interval, without scipy.
#
# half width = t(0.975, n − 1) · s / √n
#
# where s is the standard deviation of n repeats.


# Telesto repeated a measurement until the half width was below this fraction of the mean (§5.5).
WANTED = 0.05

# t(0.975) for 1 … 30 degrees of freedom; beyond, the expansion below is exact to 3 digits.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z_975 = 1.959964


def student_t_975(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


class Estimate(msgspec.Struct, frozen=True):
    """A mean over repeats, with its interval."""

    mean: float
    # Half the width of the 95 % interval; `None` for a single repeat.
    half_width: float | None
    repeats: int

    @property
    def relative(self) -> float | None:
        """The half width as a fraction of the mean."""
        if self.half_width is None or not self.mean:
            return None
        return self.half_width / self.mean

    @property
    def sure(self) -> bool:
        """Whether the interval is as narrow as Telesto required."""
        return self.relative is not None and self.relative < WANTED


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repeats, with its interval."""
    count = len(values)
    if count < 2:
        return Estimate(values[0] if values else math.nan, None, count)
    spread = statistics.stdev(values) / math.sqrt(count)
    return Estimate(statistics.fmean(values), student_t_975(count - 1) * spread, count)
