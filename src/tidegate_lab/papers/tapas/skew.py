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

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.processors import Processors
from tidegate.lab.report.experiments import Progress
from tidegate.lab.report.figures import Line, Panel, draw_grid
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.tapas.clients import Crowd, Visit
from tidegate.lab.tapas.clients_process import Visitors, visitors
from tidegate.lab.tapas.gateway_process import (
    GatewayOrder,
    GatewayProcess,
    Note,
    gateway_process,
)
from tidegate.lab.tapas.plan import SkewPlan
from tidegate.lab.tapas.promise import WARNING_S, Window, breached_s, warned_s, windows_of
from tidegate.lab.tapas.shops import Shop, shops_running
from tidegate.lab.tapas.unevenness import even_after_s, herding
from tidegate.report.chart import Table

SLOWER = 3.0
DEFAULT_POLICY = "better-of-two"
HERDING_POLICY = "workload"
_SLOW, _DEAD, _SILENT = "three times slower", "dies", "hangs"

FAULTS: dict[str, Callable[[Shop], None]] = {
    _SLOW: lambda shop: shop.pace(SLOWER),
    _DEAD: lambda shop: shop.kill(),
    _SILENT: lambda shop: shop.hang(),
}


class Trial(msgspec.Struct, frozen=True):
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


class _Place(msgspec.Struct, frozen=True):
    """The running parts for one fault of one policy."""

    fault: str
    shops: Sequence[Shop]
    gateway: GatewayProcess
    crowd: Visitors


def skew_section(plan: SkewPlan, folder: Path, progress: Progress) -> Section:
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


def _policy(plan: SkewPlan, policy: str) -> list[Trial]:
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
            crowd = Crowd(
                ports=[gateway.port],
                clients=plan.clients,
                sessions=None,
                seconds=plan.calm_s + plan.after_s,
                timeout_s=plan.client_timeout_s,
            )
            crowd_there = stack.enter_context(visitors(crowd))
            places.append(_Place(fault, shops, gateway, crowd_there))
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
    visit: Visit,
    notes: Sequence[Note],
    happened_at: float,
) -> Trial:
    # Ignore notes after the end: the clients leave one by one, which looks uneven.
    over_at = visit.began_at + plan.calm_s + plan.after_s
    notes = [note for note in notes if visit.began_at <= note.at < over_at]
    since_s = happened_at - visit.began_at
    # The fault happens at the start of a window, so that window counts.
    windows = [one for one in windows_of(visit) if _ends_after(one, since_s)]
    return Trial(
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


def _ends_after(window: Window, since_s: float) -> bool:
    return window.begins_s >= since_s - 1.0


def _section(plan: SkewPlan, trials: Sequence[Trial], others: float) -> Section:
    ours = [one for one in trials if one.policy == DEFAULT_POLICY]
    herd = [one for one in trials if one.policy == HERDING_POLICY]
    shop = plan.shop
    return Section(
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


def _herding_words(herd: Sequence[Trial], ours: Sequence[Trial]) -> str:
    if not herd or not ours:
        return ""
    return (
        f"WorkLoad by highest index sends {_mean_herding(herd):.0%} of a second's requests to one "
        f"instance, {DEFAULT_POLICY} {_mean_herding(ours):.0%}."
    )


def _mean_herding(trials: Sequence[Trial]) -> float:
    return sum(one.herding for one in trials) / len(trials)


def _bars(plan: SkewPlan, ours: Sequence[Trial], herd: Sequence[Trial]) -> list[Bar]:
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


def _table(fault: str, trials: Sequence[Trial]) -> Table:
    return Table(
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


def _draw(plan: SkewPlan, trials: Sequence[Trial], file: Path) -> None:
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
