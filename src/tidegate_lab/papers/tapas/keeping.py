"""Figures 17, 18, 21 and 22: the agreement with a static cluster and with `tidegate host`.

Two equal groups of clients arrive one by one at two systems at the same time. The static system is
plain HAProxy in front of a fixed number of instances, like the report's standard JBoss. The other
system is `tidegate host`, which begins with the same number of instances, and adds and removes
instances as the agreement requires.

Both are judged from the clients' measurements. An instance has a fixed concurrency, and its service
time takes no processor time, so both systems fit on two cores.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels, draw_rows
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.tapas.clients import (
    BREACH_S,
    TIMEOUT_S,
    WARNING_S,
    WINDOW_S,
    ClientPopulation,
    PopulationRecord,
    PromiseWindow,
    agreement_text,
    breached_s,
    drawn_s,
    needed,
    oracle_seconds,
    paid_seconds,
    start_population,
    warned_s,
    windows_of,
)
from tidegate_lab.papers.tapas.shops import (
    WELL_PATH,
    AgreementPlan,
    Case,
    HostedPlan,
    InstanceCount,
    hosted_shop,
    shops_running,
)
from tidegate_lab.peers.http_servers import haproxy_server
from tidegate_lab.report import Drawing, ExperimentSection, Progress

ORACLE_BAR = 1.3
# The number of clients at which a single instance must breach the agreement.
_BREACHING_CLIENTS = 20
# The report's results with two spare instances.
_PAPER_SLOWER, _PAPER_LESS = 0.18, 0.14


class AgreementRun(msgspec.Struct, frozen=True):
    """The result of one system in one case."""

    # Of answered requests, in the time when all clients were present.
    response_s: float
    throughput_per_s: float
    windows: list[PromiseWindow]
    breached_s: float
    warned_s: float
    requests: int
    failed: int

    @property
    def worst_s(self) -> float:
        return max((one.p95_s for one in self.windows), default=0.0)


class AgreementComparison(msgspec.Struct, frozen=True):
    """The results of both systems in one case."""

    case: Case
    static: AgreementRun
    ours: AgreementRun
    instance_s: float
    oracle_s: float
    # Instances by seconds since the clients began: of `tidegate host`, and of the oracle.
    crews: list[InstanceCount]
    oracle: list[tuple[float, int]]

    @property
    def slower(self) -> float:
        """The static system's response time over that of `tidegate host`, minus 1."""
        return self.static.response_s / self.ours.response_s - 1.0

    @property
    def of_oracle(self) -> float:
        return self.instance_s / self.oracle_s if self.oracle_s else math.nan


def keeping_section(plan: AgreementPlan, folder: Path, progress: Progress) -> ExperimentSection:
    """Run all cases."""
    processors = Processors()
    outcomes = []
    for case in plan.cases:
        progress(f"{case.name} ({case.figure}), {_seconds(plan, case):.0f} s …")
        outcome = _case(plan, case)
        outcomes.append(outcome)
        progress(
            f"{case.name}: static {outcome.static.response_s:.2f} s, ours "
            f"{outcome.ours.response_s:.2f} s; in breach {outcome.static.breached_s:.0f} and "
            f"{outcome.ours.breached_s:.0f} s; × {outcome.of_oracle:.2f} of the oracle's instances"
        )
    others = processors.share_of_others()
    return section_of(plan, outcomes, folder, others)


def _seconds(plan: AgreementPlan, case: Case) -> float:
    """Return the seconds of a case, rounded up to whole windows."""
    seconds = case.clients * plan.ramp_s + plan.hold_s
    return WINDOW_S * math.ceil(seconds / WINDOW_S)


def _case(plan: AgreementPlan, case: Case) -> AgreementComparison:
    crowd = ClientPopulation(
        ports=(),
        clients=case.clients,
        sessions=None,
        seconds=_seconds(plan, case),
        ramp_s=plan.ramp_s,
    )
    ours_plan = HostedPlan(
        plan.shop,
        agreement_text(case.start, plan.replicas_max),
        spares=case.spares,
        engine=plan.engine,
    )
    with contextlib.ExitStack() as stack:
        shops = stack.enter_context(shops_running(plan.shop, case.start))
        ports = [shop.port for shop in shops]
        static = stack.enter_context(haproxy_server(ports, ready_path=WELL_PATH))
        ours = stack.enter_context(hosted_shop(ours_plan))
        crowds = [
            stack.enter_context(start_population(msgspec.structs.replace(crowd, ports=[port])))
            for port in (static.port, ours.port)
        ]
        static_visit, ours_visit = (one.seen() for one in crowds)
        crews = list(ours.crews)
    low, high = case.start, plan.replicas_max
    began_at, ended_at = ours_visit.began_at, ours_visit.ended_at
    return AgreementComparison(
        case=case,
        static=agreement_run(plan, case, static_visit),
        ours=agreement_run(plan, case, ours_visit),
        instance_s=paid_seconds(crews, began_at, ended_at),
        oracle_s=oracle_seconds(ours_visit, plan.shop, BREACH_S, low, high),
        crews=[
            msgspec.structs.replace(one, at=one.at - began_at)
            for one in crews
            if began_at <= one.at <= ended_at
        ],
        oracle=[
            (
                float(at),
                needed(ours_visit.present_at(began_at + at), plan.shop, BREACH_S, low, high),
            )
            for at in range(int(ended_at - began_at))
        ],
    )


def agreement_run(plan: AgreementPlan, case: Case, visit: PopulationRecord) -> AgreementRun:
    """Return the result of one system from the record of its clients."""
    all_there_at = visit.began_at + case.clients * plan.ramp_s
    together = visit.requests.between(all_there_at, visit.ended_at)
    windows = windows_of(visit)
    return AgreementRun(
        response_s=together.mean_s,
        throughput_per_s=len(together.answered_s) / max(visit.ended_at - all_there_at, 1e-9),
        windows=windows,
        breached_s=breached_s(windows),
        warned_s=warned_s(windows),
        requests=len(visit.requests),
        failed=visit.requests.failed,
    )


def section_of(
    plan: AgreementPlan, outcomes: Sequence[AgreementComparison], folder: Path, others: float
) -> ExperimentSection:
    """Return the report's section, with figures, tables and bars."""
    _draw_responses(outcomes, folder / "agreement.png")
    shown = max(outcomes, key=lambda one: (-one.case.spares, one.case.clients, -one.case.start))
    _draw_course(shown, folder / "agreement-course.png")
    in_breach_s = sum(one.ours.breached_s for one in outcomes)
    static_s = sum(one.static.breached_s for one in outcomes)
    worst = max(_lean(outcomes), key=lambda one: one.of_oracle, default=None)
    shop = plan.shop
    return ExperimentSection(
        name="agreement",
        title="Keeping the agreement",
        source="Figures 17, 18, 21 and 22: response time under 1 s; from one and from two "
        "instances, up to four; static against reconfigured",
        paper="From one node the static server is 124 % slower at 20 clients and 362 % at 30; from "
        "two, response times are 39, 48 and 50 % lower at 30, 40 and 50 clients. With 50 clients "
        "and two spares the static one is 18 % slower and does 14 % less.",
        ours=(
            f"In breach {in_breach_s:.0f} s (static: {static_s:.0f} s) in "
            f"{len(outcomes)} case(s), with × {_of_oracle(outcomes):.2f} the instances of an oracle"
            + (f", × {worst.of_oracle:.2f} at worst ({worst.case.name})" if worst else "")
            + ". Static slower by "
            + ", ".join(f"{one.slower:.0%} ({one.case.name})" for one in outcomes)
            + "."
        ),
        drawings=[
            Drawing(
                "agreement.png",
                "Mean response time while all clients were there, by clients and by how many "
                "instances there were at first.",
            ),
            Drawing(
                "agreement-course.png",
                f"{shown.case.name}: the 95th percentile of each window, as clients saw it (no "
                f"answer: {TIMEOUT_S:g} s), and the instances.",
            ),
        ],
        tables=[_response_table(outcomes), _promise_table(outcomes)],
        bars=keeping_bars(outcomes),
        notes=[
            f"An instance does {shop.concurrency} operations at a time, {shop.service_s:g} s each: "
            f"{1 / shop.seconds_per_operation:.1f} a second. Clients never pause. A client comes "
            f"each {plan.ramp_s:g} s, and all stay for {plan.hold_s:g} s more.",
            f"Windows of {WINDOW_S:g} s; p95 warns at {WARNING_S:g} s and breaches at "
            f"{BREACH_S:g} s. Seconds in breach are those of whole windows. A request that failed "
            "has taken longer than any promise, as has one that waits when the window ends for "
            "longer than promised; a window in which clients got nothing at all is breached. "
            "Responses and throughput are of requests that were answered.",
            "Static: plain HAProxy before the first instances. Ours: `tidegate host --engine "
            f"{plan.engine}` with its own store and fleet, beside it on the same machine at the "
            "same time.",
            "Instances are paid for from when they have a slot until they are gone: starting, "
            "spare and draining ones, too. The oracle knows how many clients there are, and starts "
            "and ends instances in no time.",
            f"Others used {others:.0%} of the processors meanwhile.",
        ],
        data={
            "plan": msgspec.to_builtins(plan),
            "outcomes": msgspec.to_builtins(list(outcomes)),
            "share_of_others": others,
        },
    )


def _lean(outcomes: Sequence[AgreementComparison]) -> list[AgreementComparison]:
    """Return the cases without spares, because an oracle needs none."""
    return [one for one in outcomes if not one.case.spares]


def _of_oracle(outcomes: Sequence[AgreementComparison]) -> float:
    """Return our instance-seconds over the oracle's for all cases together.

    A single case with too many instances may be hidden, so there is a bar on the worst case too.
    """
    lean = _lean(outcomes)
    return sum(one.instance_s for one in lean) / max(sum(one.oracle_s for one in lean), 1e-9)


def keeping_bars(outcomes: Sequence[AgreementComparison]) -> list[Bar]:
    """Return the issue's bars, for the worst case and for all cases together."""
    alone = [
        one.static.windows[-1].p95_s
        for one in outcomes
        if one.case.start == 1 and one.case.clients == _BREACHING_CLIENTS and one.static.windows
    ]
    return [
        Bar(
            "ours: in breach after the first warning",
            *(sum(one.ours.breached_s for one in outcomes), 0.0, "s"),
            at_most=True,
        ),
        Bar(
            "ours: instance-seconds, of the oracle's, worst case",
            max((one.of_oracle for one in _lean(outcomes)), default=None),
            ORACLE_BAR,
            "×",
            at_most=True,
        ),
        Bar(
            "ours: instance-seconds, of the oracle's, all cases together",
            *(_of_oracle(outcomes), ORACLE_BAR, "×"),
            at_most=True,
        ),
        *(
            Bar(f"one alone at {_BREACHING_CLIENTS} clients: p95 at last", p95_s, BREACH_S, "s")
            for p95_s in alone
        ),
        Bar(
            "ours: requests failed",
            sum(one.ours.failed for one in outcomes),
            0,
            "",
            at_most=True,
            beyond_the_issue=True,
        ),
        *(bar for one in outcomes if one.case.spares for bar in _spare_bars(one)),
    ]


def _spare_bars(outcome: AgreementComparison) -> list[Bar]:
    """Return the bars with spares: a lead of at least the report's (figures 17 and 18)."""
    static, ours = outcome.static.throughput_per_s, outcome.ours.throughput_per_s
    return [
        Bar(f"{outcome.case.name}: static slower", outcome.slower, _PAPER_SLOWER, "of ours"),
        Bar(
            f"{outcome.case.name}: static does less",
            1.0 - static / ours if ours else None,
            _PAPER_LESS,
            "of ours",
        ),
    ]


def _response_table(outcomes: Sequence[AgreementComparison]) -> ReportTable:
    return ReportTable(
        "While all clients were there",
        (
            *("case", "figure", "static, mean", "ours, mean", "static slower", "the report's"),
            *("throughput, static", "ours"),
        ),
        [
            (
                one.case.name,
                one.case.figure,
                f"{one.static.response_s:.2f} s",
                f"{one.ours.response_s:.2f} s",
                f"{one.slower:.0%}",
                "" if one.case.paper_slower is None else f"{one.case.paper_slower:.0%}",
                f"{one.static.throughput_per_s:.1f}/s",
                f"{one.ours.throughput_per_s:.1f}/s",
            )
            for one in outcomes
        ],
    )


def _promise_table(outcomes: Sequence[AgreementComparison]) -> ReportTable:
    return ReportTable(
        "From the first client to the last",
        (
            *("case", "in breach, static", "ours", "warned, ours", "worst p95, ours"),
            *("instance-seconds", "of the oracle's", "failed, static", "ours"),
        ),
        [
            (
                one.case.name,
                f"{one.static.breached_s:.0f} s",
                f"{one.ours.breached_s:.0f} s",
                f"{one.ours.warned_s:.0f} s",
                f"{one.ours.worst_s:.2f} s" if math.isfinite(one.ours.worst_s) else "no answer",
                f"{one.instance_s:.0f}",
                f"× {one.of_oracle:.2f}",
                str(one.static.failed),
                str(one.ours.failed),
            )
            for one in outcomes
        ],
    )


def _draw_responses(outcomes: Sequence[AgreementComparison], file: Path) -> None:
    panels = []
    for start in sorted({one.case.start for one in outcomes}):
        mine = [one for one in outcomes if one.case.start == start and not one.case.spares]
        mine = mine or [one for one in outcomes if one.case.start == start]
        clients = [one.case.clients for one in mine]
        panels.append(
            Panel(
                f"From {start} instance{'s' if start > 1 else ''}",
                "clients",
                "response, s",
                [
                    Line("static", clients, [drawn_s(one.static.response_s) for one in mine]),
                    Line("ours", clients, [drawn_s(one.ours.response_s) for one in mine]),
                ],
                x_names=[str(one) for one in clients],
                levels={f"breach {BREACH_S:g} s": BREACH_S},
            )
        )
    draw_panels(panels, file, same_scale=True)


def _draw_course(outcome: AgreementComparison, file: Path) -> None:
    def middles(windows: Sequence[PromiseWindow]) -> list[float]:
        return [one.begins_s + WINDOW_S / 2 for one in windows]

    static, ours = outcome.static.windows, outcome.ours.windows
    draw_rows(
        [
            Panel(
                f"{outcome.case.name}: response, p95 of each window",
                "s",
                "s",
                [
                    Line("static", middles(static), [drawn_s(one.p95_s) for one in static]),
                    Line("ours", middles(ours), [drawn_s(one.p95_s) for one in ours]),
                ],
                levels={f"breach {BREACH_S:g} s": BREACH_S, f"warning {WARNING_S:g} s": WARNING_S},
            ),
            Panel(
                "Instances",
                "s",
                "",
                [
                    _steps("oracle", outcome.oracle),
                    _steps("ours, paid for", [(one.at, one.paid) for one in outcome.crews]),
                ],
                whole=True,
            ),
        ],
        file,
    )


def _steps(label: str, points: Sequence[tuple[float, int]]) -> Line:
    """Return a line of steps, in which each count holds until the next."""
    x: list[float] = []
    y: list[float] = []
    for at, count in points:
        if y and y[-1] != count:
            x.append(at)
            y.append(y[-1])
        x.append(at)
        y.append(float(count))
    return Line(label, x, y)
