"""The sections on HTTP services: response times against promises, requests, instances.

Only the busiest services are shown. A note gives the number of services that are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.agreement.document import Agreement
from tidegate.agreement.metrics import Metric
from tidegate.report.chart import Chart, Section
from tidegate.report.figures import count, counted, duration, percent, with_unit
from tidegate.report.figures import sentence as ended
from tidegate.report.glance import promise
from tidegate.report.http_charts import instances_chart, requests_chart, response_chart
from tidegate.report.http_windows import HttpWindow, http_windows
from tidegate.report.learned import Learned, Row
from tidegate.report.palette import AMBER
from tidegate.report.percentile_lines import Limit
from tidegate.report.violations import Turns, together, violations_table
from tidegate.telemetry.knowledge import Model

SERVICES_MAX = 8
_PHASES = {
    "wait_door_us": "waiting in the door",
    "connect_us": "on the way to an instance",
    "server_us": "in the instance",
}
_PHASE_COLUMNS = ("service", "sampled", *_PHASES, "total_us")


def service_sections(
    learned: Learned, turns: Mapping[str, Turns], agreements: Sequence[Agreement] = ()
) -> list[Section]:
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
        sections.append(Section("services-left-out", "More HTTP services", note))
    return sections


def governed_by(learned: Learned, agreements: Sequence[Agreement]) -> set[str]:
    """Return the agreements whose violations the sections of services contain."""
    seen = set(http_windows(learned))
    return {one.name for one in agreements if one.http in seen}


def _section(
    position: int,
    service: str,
    windows: Sequence[HttpWindow],
    agreements: Sequence[Agreement],
    turns: dict[str, Turns],
    capacity: Model | None,
    points: Mapping[tuple[str, str], float],
    phases: Row | None,
    learned: Learned,
) -> Section:
    of_service = together(turns, [one.name for one in agreements])
    until = learned.run.until
    charts: list[Chart] = []
    if with_responses := [window for window in windows if window.responses]:
        charts.append(response_chart(with_responses, response_limits(agreements, points)))
    if _came(windows):
        charts.append(requests_chart(windows))
    charts.append(instances_chart(windows, of_service, until))
    notes = [*_phase_words(phases)]
    if capacity is not None:
        notes.append(ended(f"What one instance can do: {capacity.reason}"))
    if not agreements:
        notes.append(
            f"No agreement about `http = {service!r}` was given: with `--agreement` its points are "
            "drawn, and its violations told."
        )
    return Section(
        f"service-{position}",
        service,
        _sentence(windows, capacity),
        charts=charts,
        tables=[violations_table(of_service, until, of_http=True)] if of_service.episodes else [],
        notes=notes,
    )


def _phase_words(row: Row | None) -> list[str]:
    """Return a note on the phases of a request, if single requests were recorded."""
    if row is None or not row["total_us"]:
        return []
    shares = [f"{percent(row[us] / row['total_us'])} {where}" for us, where in _PHASES.items()]
    return [
        f"Of the {duration(row['total_us'] / 1e6)} of an answered request on average: "
        f"{', '.join(shares)} ({counted(row['sampled'], 'request')} looked at)."
    ]


def _sentence(windows: Sequence[HttpWindow], capacity: Model | None) -> str:
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
) -> list[Limit]:
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
        Limit(f"{agreement.name}: {promise(metric, of_http=True)}", breach_s),
        Limit(f"warns at {duration(warning_s)}{learned}", warning_s, AMBER, below=True),
    ]


def _learned_points(learned: Learned) -> dict[tuple[str, str], float]:
    """Return the learned warning points, by agreement and metric."""
    rows = learned.rows("learned_warnings", ("agreement", "metric", "learned"))
    return {
        (row["agreement"], row["metric"]): row["learned"]
        for row in rows
        if row["learned"] is not None
    }
