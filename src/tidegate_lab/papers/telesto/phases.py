"""Figures 5.1, 5.2 and 5.3: throughput and response time over time, and their distribution.

One long run of the default mix. Reads wait at the node. Every tenth read first asks without
waiting, so that response times of hits and misses can be shown without the wait for a message.
Drift compares the mean of the later half of the run with the earlier half (with `--hours 2`: the
second hour with the first).
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from tidegate.lab.bench.bars import Bar
from tidegate.lab.report.figures import Line, Panel, draw_distribution, draw_rows
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.telesto.mix import MixOptions
from tidegate.lab.telesto.tally import (
    BINS,
    PUT,
    READ_HIT,
    READ_MISS,
    REQUEST,
    WAITING_READ,
    Row,
    Timing,
)
from tidegate.lab.telesto.trial import (
    Plan,
    Progress,
    Setup,
    Trial,
    disturbances,
    run_trial,
    said,
)
from tidegate.report.chart import Table

GLANCE_EVERY = 10
SEGMENTS = 10
POINTS_MAX = 120
DRIFT_MAX = 0.05
# Requests that the node answers without waiting for another client.
ANSWERED_AT_ONCE = (PUT, READ_HIT, READ_MISS)


def measure(clients: int, seconds: float, progress: Progress) -> Trial:
    """Measure the long run."""
    mix = MixOptions(clients=clients, glance_every=GLANCE_EVERY)
    plan = Plan(
        seconds=seconds / SEGMENTS,
        repeats_min=SEGMENTS,
        repeats_max=SEGMENTS,
        warm_up_s=min(2.0, seconds / 5),
    )
    return run_trial(Setup(f"{clients} clients for {seconds:,.0f} s", mix), plan, progress)


def stability_section(trial: Trial, seconds: float, folder: Path) -> Section:
    """Return the section on figures 5.1 and 5.2."""
    drift = drift_of(trial.rounds)
    interval_s = max(1, math.ceil(len(trial.rows) / POINTS_MAX))
    _draw_over_time(trial.rows, interval_s, folder / "stability.png")
    deviation = max(trial.responses[kind].deviation_ms for kind in ANSWERED_AT_ONCE)
    return Section(
        name="stability",
        title="Throughput and response time over time",
        source="Telesto §5.5.1, figures 5.1 and 5.2",
        paper=(
            "Two hours, fairly stable; three packets for each message; response times fluctuate "
            "with a standard deviation below 25 ms; misses slightly faster than the rest."
        ),
        ours=(
            f"{seconds:,.0f} s, {said(trial.messages_per_s)}; "
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


def distribution_section(trial: Trial, folder: Path) -> Section:
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
    return Section(
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


def _mean(trial: Trial, kind: str) -> float:
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


def _means_ms(rows: list[Row]) -> dict[str, float]:
    sums: dict[str, tuple[int, float]] = {}
    for row in rows:
        for kind, (count, sum_s) in row.responses.items():
            before = sums.get(kind, (0, 0.0))
            sums[kind] = (before[0] + count, before[1] + sum_s)
    return {kind: 1e3 * sum_s / count for kind, (count, sum_s) in sums.items() if count}


def _draw_over_time(rows: list[Row], interval_s: int, file: Path) -> None:
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


def _response_table(trial: Trial) -> Table:
    return Table(
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
