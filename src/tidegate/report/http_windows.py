"""The windows of HTTP services, from the tables of `learn`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.report.learned import Learned, grouped

_COLUMNS = (
    *("service", "window", "window_s", "answered_per_s", "came", "missed", "responses"),
    *("response_s_p50", "response_s_p95", "response_s_p99", "serving", "spare"),
)


@dataclass(frozen=True)
class HttpWindow:
    """One window of a service, over all its doors."""

    begins: datetime
    length_s: float
    answered_per_s: float
    # Requests that were answered or refused. `missed` are those refused, or answered with a status
    # of 500 or above.
    came: int
    missed: int
    responses: int
    # 0 without a response.
    p50_s: float
    p95_s: float
    p99_s: float
    # The number of instances that received requests, and of those kept in reserve.
    serving: float
    spare: float


def http_windows(learned: Learned) -> dict[str, list[HttpWindow]]:
    """Return the windows of every service, oldest first."""
    rows = learned.rows("http_windows", _COLUMNS, order=("service", "window"))
    return {
        service: [
            HttpWindow(
                begins=row["window"],
                length_s=row["window_s"],
                answered_per_s=row["answered_per_s"] or 0.0,
                came=row["came"],
                missed=row["missed"],
                responses=row["responses"],
                p50_s=row["response_s_p50"] or 0.0,
                p95_s=row["response_s_p95"] or 0.0,
                p99_s=row["response_s_p99"] or 0.0,
                serving=row["serving"],
                spare=row["spare"],
            )
            for row in windows
        ]
        for service, windows in grouped(rows, "service").items()
    }


def worst_of(windows: Sequence[HttpWindow]) -> HttpWindow:
    """Merge several windows: the worst of the times, the mean of rates and instances."""
    n = len(windows)
    return HttpWindow(
        begins=windows[0].begins,
        length_s=sum(window.length_s for window in windows),
        answered_per_s=sum(window.answered_per_s for window in windows) / n,
        came=sum(window.came for window in windows),
        missed=sum(window.missed for window in windows),
        responses=sum(window.responses for window in windows),
        p50_s=max(window.p50_s for window in windows),
        p95_s=max(window.p95_s for window in windows),
        p99_s=max(window.p99_s for window in windows),
        serving=sum(window.serving for window in windows) / n,
        spare=sum(window.spare for window in windows) / n,
    )
