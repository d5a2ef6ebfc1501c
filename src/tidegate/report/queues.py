"""The sections on the busiest queues: waits, stability, capacity, forecast.

A system may have thousands of queues, so only the busiest are shown. A note gives the number of
queues that are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.agreement.document import Agreement
from tidegate.report.balance import balance_chart, balance_windows
from tidegate.report.capacities import capacity_chart, fitted_from, operating_points
from tidegate.report.chart import Chart, Section
from tidegate.report.figures import count, counted, percent
from tidegate.report.forecasts import forecasts
from tidegate.report.learned import Learned
from tidegate.report.series import window_s
from tidegate.report.waits import wait_chart, wait_limit, wait_windows

QUEUES_MAX = 8


def queue_sections(
    learned: Learned,
    traffic: Sequence[tuple[str, float]],
    queues_max: int = QUEUES_MAX,
    agreements: Sequence[Agreement] = (),
) -> list[Section]:
    """Return a section for each of the busiest queues; without queues, one that says so."""
    if not traffic:
        return [
            Section(
                "queues",
                "Queues",
                missing="No queue was seen: nodes record what they do when `telemetry.enabled` is "
                "true. Let one work for a minute, then run `tidegate learn`.",
            )
        ]
    shown = [queue for queue, _ in traffic[:queues_max]]
    waits, balances = wait_windows(learned, shown), balance_windows(learned, shown)
    points, capacities = operating_points(learned, shown), learned.models("capacity")
    ahead, refused = forecasts(learned, shown)
    total = sum(messages for _, messages in traffic)
    sections = []
    for position, (queue, messages) in enumerate(traffic[:queues_max], start=1):
        charts: list[Chart] = []
        if windows := waits.get(queue):
            charts.append(wait_chart(windows, wait_limit(queue, agreements)))
        if balance := balances.get(queue):
            length_s = window_s([window.begins for window in balance])
            charts.append(balance_chart(balance, length_s))
        if seen := points.get(queue):
            charts.append(capacity_chart(seen, fitted_from(capacities.get(queue))))
        if queue in ahead:
            charts.append(ahead[queue])
        sections.append(
            Section(
                f"queue-{position}",
                queue,
                _sentence(position, len(traffic), messages, total),
                charts=charts,
                notes=[
                    *([refused[queue]] if queue in refused else []),
                    *_left_out(position, shown, traffic),
                ],
            )
        )
    return sections


def traffic_by_queue(learned: Learned) -> list[tuple[str, float]]:
    """Return every queue with its number of incoming messages, the busiest first."""
    table = learned.table("stability", ("queue", "produced_per_s", "seconds"))
    if table is None or not table.num_rows:
        return []
    produced = pc.multiply(table.column("produced_per_s"), table.column("seconds"))
    sums = (
        pa.table({"queue": table.column("queue"), "messages": produced})
        .group_by("queue")
        .aggregate([("messages", "sum")])
        .sort_by([("messages_sum", "descending"), ("queue", "ascending")])
    )
    return list(
        zip(sums.column("queue").to_pylist(), sums.column("messages_sum").to_pylist(), strict=True)
    )


def _sentence(position: int, queues: int, messages: float, total: float) -> str:
    share = f", {percent(messages / total)} of all" if total > 0 else ""
    which = "The busiest" if position == 1 else f"Number {position} by traffic"
    return f"{which} of {count(queues)}: {count(messages)} messages came in{share}."


def _left_out(
    position: int, shown: Sequence[str], traffic: Sequence[tuple[str, float]]
) -> list[str]:
    if position < len(shown) or len(shown) == len(traffic):
        return []
    rest = [messages for _, messages in traffic[len(shown) :]]
    total = sum(messages for _, messages in traffic)
    share = f", {percent(sum(rest) / total)} of all" if total > 0 else ""
    return [
        f"{counted(len(rest), 'more queue')} {'is' if len(rest) == 1 else 'are'} not drawn: "
        f"{count(sum(rest))} messages came in there{share}. "
        f"`tidegate report --queues {len(traffic)}` draws all."
    ]
