"""The sections on HTTP services: response times against promises, requests, instances.

Only the busiest services are shown. A note gives the number of services that are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median_low

from matplotlib.axes import Axes

from tidegate.agreements import Metric
from tidegate.agreements.document import Agreement
from tidegate.report.agreements import (
    ViolationRecord,
    format_promise,
    merge_violations,
    violations_table,
)
from tidegate.report.charts import (
    AMBER,
    BLUE,
    BRICK,
    GREY,
    POINTS_MAX,
    TEAL,
    Chart,
    Colour,
    LimitLine,
    ReportSection,
    ReportTable,
    clock,
    count,
    counted,
    days,
    draw_percentiles,
    duration,
    label_inside,
    mark_of,
    name_line_ends,
    number,
    number_axis,
    percent,
    rows_behind,
    shortened,
    time_axis,
    with_unit,
)
from tidegate.report.charts import sentence as ended
from tidegate.telemetry.learned import LearnedModels, Row, grouped
from tidegate.telemetry.models import StoredModel

SERVICES_MAX = 8
_PHASES = {
    "wait_door_us": "waiting in the door",
    "connect_us": "on the way to an instance",
    "server_us": "in the instance",
}
_PHASE_COLUMNS = ("service", "sampled", *_PHASES, "total_us")


def service_sections(
    learned: LearnedModels,
    turns: Mapping[str, ViolationRecord],
    agreements: Sequence[Agreement] = (),
) -> list[ReportSection]:
    """Return a section for each of the busiest services; empty if no HTTP service was recorded."""
    found = http_windows(learned)
    busiest = sorted(found, key=lambda service: (-_came(found[service]), service))
    capacities = learned.models("http_capacity")
    points = _learned_points(learned)
    phases = {row["service"]: row for row in learned.rows("http_phases", _PHASE_COLUMNS)}
    sections = [
        _section(
            position,
            service,
            found[service],
            [one for one in agreements if one.http == service],
            dict(turns),
            capacities.get(service),
            points,
            phases.get(service),
            learned,
        )
        for position, service in enumerate(busiest[:SERVICES_MAX], start=1)
    ]
    if (left_out := len(busiest) - SERVICES_MAX) > 0:
        are = "is" if left_out == 1 else "are"
        note = f"{counted(left_out, 'more HTTP service')} {are} not drawn, none busier than these."
        sections.append(ReportSection("services-left-out", "More HTTP services", note))
    return sections


def governed_by(learned: LearnedModels, agreements: Sequence[Agreement]) -> set[str]:
    """Return the agreements whose violations the sections of services contain."""
    seen = set(http_windows(learned))
    return {one.name for one in agreements if one.http in seen}


def _section(
    position: int,
    service: str,
    windows: Sequence[HttpWindow],
    agreements: Sequence[Agreement],
    turns: dict[str, ViolationRecord],
    capacity: StoredModel | None,
    points: Mapping[tuple[str, str], float],
    phases: Row | None,
    learned: LearnedModels,
) -> ReportSection:
    of_service = merge_violations(turns, [one.name for one in agreements])
    until = learned.run.until
    charts: list[Chart] = []
    if with_responses := [window for window in windows if window.responses]:
        charts.append(response_chart(with_responses, response_limits(agreements, points)))
    if _came(windows):
        charts.append(requests_chart(windows))
    charts.append(instances_chart(windows, of_service, until))
    notes = [*_phase_text(phases)]
    if capacity is not None:
        notes.append(ended(f"What one instance can do: {capacity.reason}"))
    if not agreements:
        notes.append(
            f"No agreement about `http = {service!r}` was given: with `--agreement` its points are "
            "drawn, and its violations told."
        )
    return ReportSection(
        f"service-{position}",
        service,
        _sentence(windows, capacity),
        charts=charts,
        tables=[violations_table(of_service, until, of_http=True)] if of_service.episodes else [],
        notes=notes,
    )


def _phase_text(row: Row | None) -> list[str]:
    """Return a note on the phases of a request, if single requests were recorded."""
    if row is None or not row["total_us"]:
        return []
    shares = [f"{percent(row[us] / row['total_us'])} {where}" for us, where in _PHASES.items()]
    return [
        f"Of the {duration(row['total_us'] / 1e6)} of an answered request on average: "
        f"{', '.join(shares)} ({counted(row['sampled'], 'request')} looked at)."
    ]


def _sentence(windows: Sequence[HttpWindow], capacity: StoredModel | None) -> str:
    came = _came(windows)
    missed = sum(window.missed for window in windows)
    words = "An HTTP service: nobody asked it anything."
    if came:
        kept = percent(1.0 - missed / came)
        words = f"An HTTP service: {count(came)} requests came, {kept} were answered well."
    if capacity is not None and capacity.accepted:
        per_s = capacity.parameters.get("throughput_per_s")
        words += f" One instance does {with_unit(per_s, 'req/s')}."
    return words


def _came(windows: Sequence[HttpWindow]) -> int:
    return sum(window.came for window in windows)


def response_limits(
    agreements: Sequence[Agreement], points: Mapping[tuple[str, str], float]
) -> list[LimitLine]:
    """Return warning and breaching point of the strictest promise about the response time."""
    promised: list[tuple[float, float, Agreement, Metric]] = [
        (metric.breach, points.get((one.name, metric.name), metric.warning), one, metric)
        for one in agreements
        for metric in one.metrics
        if metric.stem == "response"
    ]
    if not promised:
        return []
    breach_s, warning_s, agreement, metric = min(promised, key=lambda one: one[:2])
    learned = ", learned" if (agreement.name, metric.name) in points else ""
    return [
        LimitLine(f"{agreement.name}: {format_promise(metric, of_http=True)}", breach_s),
        LimitLine(f"warns at {duration(warning_s)}{learned}", warning_s, AMBER, below=True),
    ]


def _learned_points(learned: LearnedModels) -> dict[tuple[str, str], float]:
    """Return the learned warning points, by agreement and metric."""
    rows = learned.rows("learned_warnings", ("agreement", "metric", "learned"))
    return {
        (row["agreement"], row["metric"]): row["learned"]
        for row in rows
        if row["learned"] is not None
    }


# The windows of HTTP services, from the tables of `learn`.


_HTTP_WINDOW_COLUMNS = (
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


def http_windows(learned: LearnedModels) -> dict[str, list[HttpWindow]]:
    """Return the windows of every service, oldest first."""
    rows = learned.rows("http_windows", _HTTP_WINDOW_COLUMNS, order=("service", "window"))
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


# Charts of an HTTP service: response times, requests, instances.


# The position of the marks of missed requests, as fractions of the axes' height.
_MISSED_FOOT, _MISSED_TOP = 0.93, 0.985


def response_chart(windows: Sequence[HttpWindow], limits: Sequence[LimitLine]) -> Chart:
    """Return response times with warning and breaching points; `windows` must have responses."""
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    worst = max(windows, key=lambda window: window.p99_s)
    middle_s = median_low(window.p50_s for window in windows)
    return Chart(
        title="Response time",
        sentence=(
            f"In a typical window half of the requests took at most {duration(middle_s)}; the "
            f"slowest, at {clock(worst.begins)} UTC, had a p99 of {duration(worst.p99_s)}."
            + _each(windows, points, "the worst")
        ),
        measures="as clients see it, waiting in the door included",
        draw=lambda axes: draw_percentiles(axes, points, window_s, limits),
        label_in=0.62,
        table=ReportTable(
            f"Windows of {duration(window_s)}, of each stretch the one with the highest p99.",
            ("window begins (UTC)", "responses", "median", "p95", "p99"),
            [
                (
                    clock(window.begins),
                    count(window.responses),
                    duration(window.p50_s),
                    duration(window.p95_s),
                    duration(window.p99_s),
                )
                for window in rows_behind(windows, lambda window: window.p99_s)
            ],
            rows_in_all=len(windows),
        ),
    )


def requests_chart(windows: Sequence[HttpWindow]) -> Chart:
    """Return requests per second, with the windows in which some were missed.

    `windows` are oldest first and not empty.
    """
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    busiest = max(windows, key=lambda window: window.answered_per_s)
    mean_per_s = fmean(window.answered_per_s for window in windows)
    missed = sum(window.missed for window in windows)

    def draw(axes: Axes) -> None:
        at = days([point.begins for point in points])
        rates = [point.answered_per_s for point in points]
        axes.fill_between(at, rates, color=BLUE.light, alpha=0.14, linewidth=0)
        axes.plot(at, rates, marker=mark_of(points), color=BLUE.light)
        time_axis(axes, window_s)
        # Leave space above the line for the marks.
        number_axis(axes, max(rates) * 1.15)
        spoiled = [day for day, point in zip(at, points, strict=True) if point.missed > 0]
        axes.vlines(
            spoiled,
            _MISSED_FOOT,
            _MISSED_TOP,
            transform=axes.get_xaxis_transform(),
            color=BRICK.light,
            linewidth=1.6,
        )
        if spoiled:
            side = "left" if spoiled[0] < (at[0] + at[-1]) / 2 else "right"
            shift = 4.0 if side == "left" else -4.0
            label_inside(
                axes,
                "missed",
                (spoiled[0], 0.86),
                (shift, 0.0),
                colour=BRICK,
                align=side,
                across=True,
            )

    return Chart(
        title="Requests",
        sentence=(
            f"{with_unit(mean_per_s, 'req/s')} on average, at most "
            f"{with_unit(busiest.answered_per_s, 'req/s')} at {clock(busiest.begins)} UTC. "
            + _missed_text(missed, windows)
            + _each(windows, points, "the mean")
        ),
        measures="req/s; above, windows in which some were missed",
        draw=draw,
        table=ReportTable(
            f"Windows of {duration(window_s)}, of each stretch the one with most missed, then most "
            "requests.",
            ("window begins (UTC)", "answered", "missed"),
            [
                (
                    clock(window.begins),
                    with_unit(window.answered_per_s, "req/s"),
                    count(window.missed),
                )
                for window in rows_behind(windows, _missed_then_busy)
            ],
            rows_in_all=len(windows),
        ),
    )


def _missed_then_busy(window: HttpWindow) -> float:
    return window.missed * 1e9 + window.answered_per_s


def _missed_text(missed: int, windows: Sequence[HttpWindow]) -> str:
    if not missed:
        return "None were missed: turned away, cut off, or answered with 500 and above."
    worst = max(windows, key=lambda window: window.missed)
    share = percent(missed / sum(window.came for window in windows))
    return (
        f"{count(missed)} ({share}) were turned away, cut off, or answered with 500 and above, "
        f"most at {clock(worst.begins)} UTC."
    )


def instances_chart(
    windows: Sequence[HttpWindow], turns: ViolationRecord, until: datetime
) -> Chart:
    """Return the number of instances over time, with warnings and violations.

    `windows` are oldest first and not empty.
    """
    window_s = windows[0].length_s
    points = shortened(windows, worst_of, POINTS_MAX)
    served_s = sum(window.serving * window.length_s for window in windows)
    most, least = (pick(windows, key=lambda window: window.serving).serving for pick in (max, min))
    with_spares = any(window.spare > 0 for window in windows)

    def draw(axes: Axes) -> None:
        at = days([point.begins for point in points])
        serving = [point.serving for point in points]
        step = "steps-post" if len(points) > 1 else "default"
        ends: list[tuple[float, str, Colour]] = [(serving[-1], "serving", TEAL)]
        if with_spares:
            spare = [point.spare for point in points]
            axes.plot(at, spare, drawstyle=step, color=GREY.light, linewidth=1.0)
            ends.append((spare[-1], "spare", GREY))
        axes.plot(at, serving, marker=mark_of(points), drawstyle=step, color=TEAL.light)
        time_axis(axes, window_s)
        number_axis(axes, max(*serving, *(point.spare for point in points), 1.0) * 1.2)
        _mark_turns(axes, turns, until)
        name_line_ends(axes, ends)

    span = (
        number(least) if round(least, 2) == round(most, 2) else f"{number(least)} to {number(most)}"
    )
    return Chart(
        title="Instances",
        sentence=(
            f"{span} served, for {duration(served_s)} together. {_transition_text(turns)}"
            + _each(windows, points, "the mean")
        ),
        measures="instances",
        draw=draw,
        label_in=0.62,
        table=ReportTable(
            f"Windows of {duration(window_s)}, of each stretch the one with most instances.",
            ("window begins (UTC)", "serving", "spare"),
            [
                (clock(window.begins), number(window.serving), number(window.spare))
                for window in rows_behind(windows, lambda window: window.serving)
            ],
            rows_in_all=len(windows),
        ),
    )


def _mark_turns(axes: Axes, turns: ViolationRecord, until: datetime) -> None:
    """Draw violations as bands and warnings as short lines at the bottom, with a label each."""
    left, right = (float(edge) for edge in axes.get_xlim())
    warned = [day for day in days(turns.warned) if left <= day <= right]
    axes.vlines(
        warned, 0.0, 0.06, transform=axes.get_xaxis_transform(), color=AMBER.light, linewidth=1.6
    )
    if warned:
        label_inside(axes, "warned", (warned[0], 0.11), colour=AMBER, across=True)
    named = False
    for episode in turns.episodes:
        begins, ends = days([episode.begins, episode.ends or until])
        if ends < left or begins > right:
            continue
        # Draw short violations wide enough to be visible.
        ends = max(ends, begins + 0.004 * (right - left))
        axes.axvspan(
            max(begins, left), min(ends, right), color=BRICK.light, alpha=0.25, linewidth=0
        )
        if not named:
            label_inside(axes, "violated", (max(begins, left), 0.95), colour=BRICK, across=True)
            named = True


def _transition_text(turns: ViolationRecord) -> str:
    broken, warned = len(turns.episodes), len(turns.warned)
    if not broken and not warned:
        return "No promise was warned of or broken."
    return (
        f"Promises were warned of {counted(warned, 'time')} and broken {counted(broken, 'time')}."
    )


def _each(windows: Sequence[HttpWindow], points: Sequence[HttpWindow], what: str) -> str:
    each = -(-len(windows) // max(len(points), 1))
    if each <= 1:
        return ""
    windows_of = f"{counted(each, 'window')} of {duration(windows[0].length_s)}"
    return f" Each point is {what} of {windows_of}."
