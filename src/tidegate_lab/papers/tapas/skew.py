"""The effect of each balancing policy when one of four instances becomes slow, dies or hangs.

The embedded gateway runs with its default health checks and ejection in front of four instances of
fixed capacity. The clients never pause. The fault happens at a known time.

The clients' measurements show failed requests, and windows with warnings and breaches. The
gateway's notes show when the requests are distributed evenly again. The three faults of a policy
run at the same time, each with its own instances.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_grid
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.tapas.clients import (
    WARNING_S,
    ClientPopulation,
    PopulationProcess,
    PopulationRecord,
    PromiseWindow,
    breached_s,
    start_population,
    warned_s,
    windows_of,
)
from tidegate_lab.papers.tapas.gateway_process import (
    GatewayOrder,
    GatewayProcess,
    GatewaySample,
    gateway_process,
)
from tidegate_lab.papers.tapas.shops import ShopInstance, SkewPlan, shops_running
from tidegate_lab.report import Drawing, ExperimentSection, Progress

SLOWER = 3.0
DEFAULT_POLICY = "better-of-two"
HERDING_POLICY = "workload"
_SLOW, _DEAD, _SILENT = "three times slower", "dies", "hangs"

FAULTS: dict[str, Callable[[ShopInstance], None]] = {
    _SLOW: lambda shop: shop.pace(SLOWER),
    _DEAD: lambda shop: shop.kill(),
    _SILENT: lambda shop: shop.hang(),
}


class SkewTrial(msgspec.Struct, frozen=True):
    """The result of one policy with one fault."""

    policy: str
    fault: str
    requests: int
    failed: int
    # Seconds of the windows after the fault.
    warned_s: float
    breached_s: float
    # None means not before the end of the run.
    even_after_s: float | None
    # The mean share of the busiest instance in the requests of a second, before the fault.
    herding: float
    mean_s_before: float
    mean_s_after: float
    # For the figure: seconds since the clients began, and outstanding requests by instance.
    in_hand: list[tuple[float, list[int]]]

    @property
    def even_words(self) -> str:
        return "never" if self.even_after_s is None else f"{self.even_after_s:.1f} s"


class _FaultRun(msgspec.Struct, frozen=True):
    """The running parts for one fault of one policy."""

    fault: str
    shops: Sequence[ShopInstance]
    gateway: GatewayProcess
    crowd: PopulationProcess


def skew_section(plan: SkewPlan, folder: Path, progress: Progress) -> ExperimentSection:
    """Run all policies one after the other."""
    processors = Processors()
    trials = []
    for policy in plan.policies:
        progress(f"{policy} …")
        found = _policy(plan, policy)
        trials += found
        progress(
            f"{policy}: "
            + "; ".join(
                f"{one.fault}: {one.failed} failed, warned {one.warned_s:.0f} s, even after "
                f"{one.even_words}"
                for one in found
            )
        )
    others = processors.share_of_others()
    _draw(plan, trials, folder / "skew.png")
    return _section(plan, trials, others)


def _policy(plan: SkewPlan, policy: str) -> list[SkewTrial]:
    with contextlib.ExitStack() as stack:
        prepared = []
        for fault in FAULTS:
            shops = stack.enter_context(shops_running(plan.shop, plan.instances))
            order = GatewayOrder(
                [shop.port for shop in shops], policy, answer_timeout_s=plan.answer_timeout_s
            )
            prepared.append((fault, shops, stack.enter_context(gateway_process(order))))
        places = []
        for fault, shops, gateway in prepared:
            crowd = ClientPopulation(
                ports=[gateway.port],
                clients=plan.clients,
                sessions=None,
                seconds=plan.calm_s + plan.after_s,
                timeout_s=plan.client_timeout_s,
            )
            crowd_there = stack.enter_context(start_population(crowd))
            places.append(_FaultRun(fault, shops, gateway, crowd_there))
        happened = []
        for place in places:
            place.crowd.until(plan.calm_s)
            happened.append(time.monotonic())
            FAULTS[place.fault](place.shops[0])
        visits = [place.crowd.seen() for place in places]
        return [
            _trial(plan, policy, place.fault, visit, place.gateway.notes(), at)
            for place, visit, at in zip(places, visits, happened, strict=True)
        ]


def _trial(
    plan: SkewPlan,
    policy: str,
    fault: str,
    visit: PopulationRecord,
    notes: Sequence[GatewaySample],
    happened_at: float,
) -> SkewTrial:
    # Ignore notes after the end: the clients leave one by one, which looks uneven.
    over_at = visit.began_at + plan.calm_s + plan.after_s
    notes = [note for note in notes if visit.began_at <= note.at < over_at]
    since_s = happened_at - visit.began_at
    # The fault happens at the start of a window, so that window counts.
    windows = [one for one in windows_of(visit) if _ends_after(one, since_s)]
    return SkewTrial(
        policy=policy,
        fault=fault,
        requests=len(visit.requests),
        failed=visit.requests.failed,
        warned_s=warned_s(windows),
        breached_s=breached_s(windows),
        even_after_s=even_after_s(notes, happened_at),
        herding=herding(notes, visit.began_at + 1.0, happened_at),
        mean_s_before=visit.requests.between(visit.began_at, happened_at).mean_s,
        mean_s_after=visit.requests.between(happened_at, visit.ended_at).mean_s,
        in_hand=[(note.at - visit.began_at, note.outstanding) for note in notes],
    )


def _ends_after(window: PromiseWindow, since_s: float) -> bool:
    return window.begins_s >= since_s - 1.0


def _section(plan: SkewPlan, trials: Sequence[SkewTrial], others: float) -> ExperimentSection:
    ours = [one for one in trials if one.policy == DEFAULT_POLICY]
    herd = [one for one in trials if one.policy == HERDING_POLICY]
    shop = plan.shop
    return ExperimentSection(
        name="skew",
        title="One instance is slow, dead or silent",
        source="Section 2.2.3: policies that adapt to the quality of service that servers deliver",
        paper="Policies are described; none is measured.",
        ours="; ".join(
            f"{one.fault}: {one.failed} of {one.requests} requests failed, {one.warned_s:.0f} s in "
            f"warning, even after {one.even_words}"
            for one in ours
        )
        + f" ({DEFAULT_POLICY}). {_herding_words(herd, ours)}",
        drawings=[
            Drawing(
                "skew.png",
                f"Requests in hand of each instance; the first becomes {_SLOW} where it is marked.",
            )
        ],
        tables=[_table(fault, trials) for fault in FAULTS],
        bars=_bars(plan, ours, herd),
        notes=[
            f"{plan.instances} instances, {shop.concurrency} operations at a time of "
            f"{shop.service_s:g} s each; {plan.clients} clients that never pause; the fault after "
            f"{plan.calm_s:g} s, seen for {plan.after_s:g} s. Warned: p95 of a 5 s window at "
            f"{WARNING_S:g} s or above.",
            f"No answer within {plan.answer_timeout_s:g} s is a failure to the gateway; a request "
            "that is not idempotent is never sent again once a server has got it, so it fails with "
            "that server.",
            "Even: of those that are not ejected nobody has more than twice the mean in hand and "
            "one more, and an ejected one has nothing, in nine of ten moments from then on. "
            "Herding: the mean share of a second's requests that the busiest of four gets; an even "
            "one is 25 %.",
            f"Others used {others:.0%} of the processors meanwhile.",
        ],
        data={
            "plan": msgspec.to_builtins(plan),
            "trials": msgspec.to_builtins(list(trials)),
            "share_of_others": others,
        },
    )


def _herding_words(herd: Sequence[SkewTrial], ours: Sequence[SkewTrial]) -> str:
    if not herd or not ours:
        return ""
    return (
        f"WorkLoad by highest index sends {_mean_herding(herd):.0%} of a second's requests to one "
        f"instance, {DEFAULT_POLICY} {_mean_herding(ours):.0%}."
    )


def _mean_herding(trials: Sequence[SkewTrial]) -> float:
    return sum(one.herding for one in trials) / len(trials)


def _bars(plan: SkewPlan, ours: Sequence[SkewTrial], herd: Sequence[SkewTrial]) -> list[Bar]:
    by_fault = {one.fault: one for one in ours}
    bars = []
    if herd and ours:
        bars = [
            Bar(f"herding of {HERDING_POLICY}", _mean_herding(herd), 0.5, "of all"),
            Bar(f"herding of {DEFAULT_POLICY}", _mean_herding(ours), 0.4, "of all", at_most=True),
        ]
    if _SLOW in by_fault:
        slow = by_fault[_SLOW]
        bars.append(Bar(f"{_SLOW}: requests failed", slow.failed, 0, "", at_most=True))
        bars.append(
            Bar(
                f"{_SLOW}: in warning",
                slow.warned_s,
                0.0,
                "s",
                at_most=True,
                beyond_the_issue=True,
            )
        )
    for fault in (_DEAD, _SILENT):
        if fault in by_fault:
            # A dead instance may fail no more than its outstanding requests, which must not be
            # sent twice. An instance that hangs gets more until two health checks have failed.
            most = plan.clients if fault == _SILENT else plan.shop.concurrency * 3
            bars.append(
                Bar(
                    f"{fault}: requests failed",
                    by_fault[fault].failed,
                    most,
                    "",
                    at_most=True,
                    beyond_the_issue=True,
                )
            )
    return bars


def _table(fault: str, trials: Sequence[SkewTrial]) -> ReportTable:
    return ReportTable(
        f"One instance {'becomes ' if fault == _SLOW else ''}{fault}",
        (
            *("policy", "failed", "of", "in warning", "in breach", "even after"),
            *("mean before", "after", "herding before"),
        ),
        [
            (
                one.policy,
                str(one.failed),
                str(one.requests),
                f"{one.warned_s:.0f} s",
                f"{one.breached_s:.0f} s",
                one.even_words,
                f"{one.mean_s_before * 1000:.0f} ms",
                f"{one.mean_s_after * 1000:.0f} ms",
                f"{one.herding:.0%}",
            )
            for one in trials
            if one.fault == fault
        ],
    )


def _draw(plan: SkewPlan, trials: Sequence[SkewTrial], file: Path) -> None:
    panels = []
    for trial in trials:
        if trial.fault != _SLOW:
            continue
        times = [at for at, _ in trial.in_hand]
        panels.append(
            Panel(
                trial.policy,
                "s",
                "in hand",
                [
                    Line(
                        f"instance {number + 1}",
                        times,
                        [float(one[number]) for _, one in trial.in_hand],
                    )
                    for number in range(plan.instances)
                ],
                moments={"": plan.calm_s},
                whole=True,
            )
        )
    draw_grid(panels, file, one_legend=True)


# Measures of how evenly the gateway distributes requests over instances, from its notes.
#
#     even      no instance has more outstanding requests than twice the mean plus one, and an
#     ejected
#               instance has none; the mean is over the instances that are not ejected
#     herding   the busiest instance's share of the requests of a second
#
# A single moment proves nothing, because outstanding requests vary by chance. The distribution is
# even from the first even moment on after which nine of ten moments are even.


_MOST = 2.0
_SPARE = 1.0
_OF_MOMENTS = 0.9
# The result needs at least this many seconds of notes after it.
_LAST_S = 2.0


def is_even(note: GatewaySample) -> bool:
    """Return whether the outstanding requests of one note are distributed evenly."""
    in_hand = [count for count, out in zip(note.outstanding, note.ejected, strict=True) if not out]
    # Requests at an ejected instance still wait, so the distribution is not even yet.
    stuck = sum(count for count, out in zip(note.outstanding, note.ejected, strict=True) if out)
    if not in_hand or stuck:
        return False
    return max(in_hand) <= _MOST * sum(in_hand) / len(in_hand) + _SPARE


def even_after_s(notes: Sequence[GatewaySample], since: float) -> float | None:
    """Return the seconds from `since` until the distribution stays even.

    None means that it did not become even, or too close to the end of the notes.
    """
    later = [note for note in notes if note.at >= since]
    if not later:
        return None
    ends_at = later[-1].at
    for position, note in enumerate(later):
        if ends_at - note.at < _LAST_S:
            return None
        rest = later[position:]
        if is_even(note) and sum(map(is_even, rest)) >= _OF_MOMENTS * len(rest):
            return note.at - since
    return None


def herding(notes: Sequence[GatewaySample], begin_s: float, end_s: float) -> float:
    """Return the busiest instance's share of a second's requests, as the mean of a period.

    The least possible value is 1 / instances; 0 means that there were no requests.
    """
    seen = [note for note in notes if begin_s <= note.at < end_s]
    shares = []
    before = seen[0] if seen else None
    for note in seen[1:]:
        assert before is not None
        if note.at - before.at < 1.0:
            continue
        sent = [now - then for now, then in zip(note.sent, before.sent, strict=True)]
        if sum(sent) > 0:
            shares.append(max(sent) / sum(sent))
        before = note
    return sum(shares) / len(shares) if shares else 0.0
