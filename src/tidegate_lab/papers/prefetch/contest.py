"""Comparison of the controlled prefetch with fixed ones: speed, held messages and fair shares.

Speed and held messages are measured with one consumer on a queue that is never empty. All
contenders take turns for several rounds, so that other load on the machine affects them alike.

Fair shares are measured on a queue with a fixed number of messages and no publishers, which a
consumer could hoard. One consumer works and a second one joins. The second has its fair share when
it handles at least 80 % of the first one's rate. If the queue is empty before, it never had it.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.controller import WorkloadSchedule
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_bars, draw_rows
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.prefetch.closed_loop import TestbedRun
from tidegate_lab.papers.prefetch.plan import (
    PREFETCH_MAX,
    MeterTrack,
    PrefetchPlan,
    RateSpread,
    Setting,
    Testbed,
    TestbedConsumer,
    back_after_s,
)
from tidegate_lab.papers.prefetch.publishers_process import PAYLOAD_BYTES
from tidegate_lab.papers.prefetch.simulated import SimulatedTestbed
from tidegate_lab.report import Drawing, ExperimentSection

# More than the length limit of the queue, so in effect unlimited.
UNLIMITED = 65_535
FIXED = (1, 10, 250, UNLIMITED)
CONTROLLED = "controlled"
CONTEST_START = 10
# The required speed relative to the best; 1 % is the difference between equal rounds.
AS_FAST = 0.99
LESS_HELD = 10.0
FAIR = 0.8
FAIR_WINDOW_S = 0.5
JOIN_AFTER_S = 1.0


class ContestResult(msgspec.Struct, frozen=True):
    """The result of one contender."""

    name: str
    handled_per_s: float
    # The fraction of the time in which the handler was busy.
    busy: float
    held: float
    held_bytes: float
    # Seconds until the second consumer had its fair share; None if it never had it.
    fair_after_s: float | None
    second_handled: int
    first_handled: int


def contest_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Measure all contenders in turn."""
    plan = bench.plan
    goal = PrefetchGoal(
        settle_s=plan.disturbed_settle_s,
        sample_s=plan.disturbed_sample_s,
        high=PREFETCH_MAX,
        adaptive=False,
        model=bench.model(),
    )
    ways = [_Way(_name(prefetch), prefetch, None) for prefetch in FIXED]
    ways.append(_Way(CONTROLLED, CONTEST_START, goal))
    # In turn, so that other load on the machine affects all contenders alike.
    alone = [[_alone(bench, way) for way in ways] for _ in range(plan.contest_rounds)]
    outcomes = [
        _outcome(bench, way, [one[place] for one in alone]) for place, way in enumerate(ways)
    ]
    _draw_contest(outcomes, folder / "contest.png")
    *fixed, controlled = outcomes
    best = max(one.handled_per_s for one in fixed)
    greedy = min(one.held_bytes for one in fixed if one.name in (_name(250), _name(UNLIMITED)))
    return ExperimentSection(
        name="contest",
        title="Against fixed prefetches",
        source="Sections 2 and 3.1: keep consumers busy, and messages in the broker",
        paper="No comparison is made.",
        ours=(
            f"Keep up handles {controlled.handled_per_s:.0f} msg/s and holds "
            f"{controlled.held_bytes:.0f} B; the best fixed one handles {best:.0f} msg/s, and the "
            f"greedy ones hold {greedy:,.0f} B and more."
        ),
        drawings=[Drawing("contest.png", "Handled a second, and messages held in the consumer.")],
        tables=[
            ReportTable(
                f"Alone at a full queue, and two at {plan.shared_messages} messages",
                (
                    *("prefetch", "handled/s", "busy", "ms for each", "held", "bytes held"),
                    *("second has its share after", "handled by first and second"),
                ),
                [
                    (
                        one.name,
                        f"{one.handled_per_s:.0f}",
                        f"{one.busy:.1%}",
                        f"{1e3 * one.busy / max(one.handled_per_s, 1e-9):.3f}",
                        f"{one.held:.1f}",
                        f"{one.held_bytes:,.0f}",
                        "never" if one.fair_after_s is None else f"{one.fair_after_s:.1f} s",
                        f"{one.first_handled} and {one.second_handled}",
                    )
                    for one in outcomes
                ],
            )
        ],
        bars=[
            Bar(
                "controlled as fast as the best fixed one (but for 1 %, by which rounds differ)",
                controlled.handled_per_s / best,
                AS_FAST,
                "×",
            ),
            Bar(
                "greedy ones hold more than the controlled one",
                greedy / max(controlled.held_bytes, 1.0),
                LESS_HELD,
                "×",
            ),
            Bar(
                "controlled: a second consumer has its share",
                controlled.fair_after_s if controlled.fair_after_s is not None else math.inf,
                plan.disturbed_settle_s,
                "s",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[
            "Held are messages that lie unbegun in the consumer, 256 bytes each; what a client "
            "library keeps around each of them comes on top.",
            "Controlled: keep up, with as many messages at hand as the handler needs to be busy.",
            "Busy is the part of the time in which the handler was at work, and ms for each what "
            "it took for a message.",
            f"Unlimited is a prefetch of {UNLIMITED:,}, more than the queue may have.",
        ],
        data={one.name: msgspec.to_builtins(one) for one in outcomes},
    )


def _name(prefetch: int) -> str:
    return "unlimited" if prefetch == UNLIMITED else str(prefetch)


class _Way(NamedTuple):
    name: str
    prefetch: int
    # None means that the prefetch is fixed.
    goal: PrefetchGoal | None


def _alone(bench: TestbedRun, way: _Way) -> MeterTrack:
    bench.progress(f"prefetch {way.name} …")
    scene, plan = bench.scene, bench.plan
    try:
        scene.publish(1.0)
        scene.wait_for_messages()
        with scene.consumer(way.prefetch) as consumer:
            if way.goal is not None:
                scene.steer(consumer, way.goal)
                consumer.watch(plan.disturbed_settle_s)
            consumer.watch(plan.contest_s / 3)
            return consumer.watch(plan.contest_s)
    finally:
        scene.steer_no_more()


def _outcome(bench: TestbedRun, way: _Way, alone: list[MeterTrack]) -> ContestResult:
    bench.progress(f"two with prefetch {way.name} …")
    scene = bench.scene
    try:
        scene.publish(1.0)
        _leave(scene, bench.plan.shared_messages)
        first, second = _together(bench, way)
    finally:
        scene.steer_no_more()
        scene.publish(1.0)
    held = fmean(note.held for track in alone for note in track.notes)
    joined_at = second.began_at
    return ContestResult(
        name=way.name,
        handled_per_s=fmean(_handled(track) / track.seconds for track in alone),
        busy=fmean(_busy_s(track) / track.seconds for track in alone),
        held=held,
        held_bytes=held * PAYLOAD_BYTES,
        fair_after_s=_fair_after_s(first, second, joined_at),
        first_handled=_handled(first.since(joined_at)),
        second_handled=_handled(second),
    )


def _together(bench: TestbedRun, way: _Way) -> tuple[MeterTrack, MeterTrack]:
    """Run a consumer, let a second one join, and return the tracks of both."""
    scene = bench.scene
    with scene.consumer(way.prefetch) as first:
        if way.goal is not None:
            scene.steer(first, way.goal)
        first.watch(JOIN_AFTER_S)
        with scene.consumer(way.prefetch) as second:
            if way.goal is not None:
                scene.steer(second, way.goal)
            # Until all messages are handled or the time is up, as with prefetch 1.
            end_s = scene.now() + bench.plan.disturbed_settle_s
            while scene.now() < end_s and _is_at_work(first, second):
                pass
            return first.track, second.track


def _is_at_work(first: TestbedConsumer, second: TestbedConsumer) -> bool:
    """Watch both consumers for a while, and return whether any message was handled."""
    began_at = first.watch(FAIR_WINDOW_S).began_at
    second.watch(0.0)
    return _handled(first.track.since(began_at)) + _handled(second.track.since(began_at)) > 0


def _leave(scene: Testbed, messages: int) -> None:
    """Leave about `messages` messages in the queue, and pause the publishers."""
    scene.publish(0.0)
    scene.purge()
    before = scene.publish(1.0)
    while scene.publish(1.0) - before < messages:
        scene.pause(0.02)
    scene.publish(0.0)


def _fair_after_s(first: MeterTrack, second: MeterTrack, joined_at: float) -> float | None:
    pairs = zip(
        first.since(joined_at).samples(FAIR_WINDOW_S),
        second.since(joined_at).samples(FAIR_WINDOW_S),
        strict=False,
    )
    for ours, theirs in pairs:
        if ours.handled_per_s > 0.0 and theirs.handled_per_s >= FAIR * ours.handled_per_s:
            return theirs.at_s
    return None


def _handled(track: MeterTrack) -> int:
    return track.notes[-1].handled - track.notes[0].handled if track.notes else 0


def _busy_s(track: MeterTrack) -> float:
    return track.notes[-1].busy_s - track.notes[0].busy_s if track.notes else 0.0


def _draw_contest(outcomes: list[ContestResult], file: Path) -> None:
    held = "Held in the consumer, messages"
    draw_bars(
        {
            "Handled, msg/s": {one.name: one.handled_per_s for one in outcomes},
            held: {one.name: one.held for one in outcomes},
        },
        file,
        logarithmic=[held],
    )


# Workload profiles, which are future work of the paper: one model for each workload.
#
# There are two workloads; the network delay of one is four times that of the other. A model of each
# is identified as `tidegate tune` does. Then one consumer changes between the workloads. Three runs
# use the model of the first, the model of the second, or the model of the current workload. The law
# `laws/workload_schedule` recognizes the current workload by the rate per unit of prefetch.
#
# The experiment always runs in virtual time, so that the runs differ in the law only.


NEAR, FAR, SCHEDULED = "near", "far", "whichever is at hand"
# The delay in each direction.
DELAYS_S = {NEAR: 0.003, FAR: 0.012}
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)
SAMPLE_S, SETTLE_S = 0.5, 10.0
# The sequence of workloads.
VISITS = (NEAR, FAR, NEAR, FAR, NEAR)
WITHIN = 0.05


class WorkloadPeriod(msgspec.Struct, frozen=True):
    """A period with one workload, from its start."""

    workload: str
    rates_per_s: list[float]
    settled_after_s: float
    # The rates after the settling time.
    spread: RateSpread


class ProfileRun(msgspec.Struct, frozen=True):
    """The run with one choice of models."""

    by: str
    visits: list[WorkloadPeriod]
    # The chosen model at each change.
    chosen: list[str]

    @property
    def longest_s(self) -> float:
        """The longest settling time, without the first period, which begins at prefetch 1."""
        return max(one.settled_after_s for one in self.visits[1:])

    @property
    def deviation_per_s(self) -> float:
        return max(one.spread.deviation_per_s for one in self.visits)


def profiles_section(bench: TestbedRun, folder: Path) -> ExperimentSection:
    """Run the three choices of models over the same sequence of workloads."""
    target = PrefetchPlan().target_per_s
    models = {name: _identified(bench, name) for name in DELAYS_S}
    runs = [_steered(bench, by, models, target) for by in (NEAR, FAR, SCHEDULED)]
    scheduled = runs[-1]
    _draw_profiles(runs, target, folder / "profiles.png")
    return ExperimentSection(
        name="profiles",
        title="Workload profiles",
        source="Section 5, future work: models of workload profiles",
        paper="One kind of workload; others are left for later.",
        ours=(
            f"With the model of whichever workload is at hand the rate has settled "
            f"{scheduled.longest_s:.1f} s after a change at the latest and deviates by at most "
            f"{scheduled.deviation_per_s:.0f} msg/s; with that of one workload alone "
            + ", ".join(
                f"{run.longest_s:.1f} s and {run.deviation_per_s:.0f} msg/s ({run.by})"
                for run in runs[:-1]
            )
            + "."
        ),
        drawings=[
            Drawing(
                "profiles.png",
                f"Sampled arrival rate, samples of {SAMPLE_S:g} s; marked is where the way becomes "
                "longer or shorter.",
            )
        ],
        tables=[
            ReportTable(
                "Models, by what `tidegate tune prefetch` does",
                ("workload", "each way", "a", "b", "a unit is worth"),
                [
                    (
                        name,
                        f"{1e3 * DELAYS_S[name]:g} ms",
                        f"{model.a:.2f}",
                        f"{model.b:.1f}",
                        f"{model.worth_per_s:.0f} msg/s",
                    )
                    for name, model in models.items()
                ],
            ),
            ReportTable(
                f"Mean of five samples within {WITHIN:.0%} of {target:.0f} msg/s after, s; then "
                "mean and standard deviation",
                ("steered by the model of", *(f"{n + 1}: {at}" for n, at in enumerate(VISITS))),
                [
                    (
                        run.by,
                        *(f"{one.settled_after_s:.1f}; {one.spread}" for one in run.visits),
                    )
                    for run in runs
                ],
            ),
        ],
        bars=[
            Bar(
                f"{SCHEDULED}: settled after a change",
                scheduled.longest_s,
                SETTLE_S,
                "s",
                at_most=True,
                beyond_the_issue=True,
            )
        ],
        notes=[
            "In virtual time, whatever the engine. Nobody is asked which workload it is: what a "
            "unit of prefetch brings tells.",
            f"Chosen in turn: {', '.join(scheduled.chosen) or 'none'}.",
        ],
        data={run.by: msgspec.to_builtins(run) for run in runs},
    )


def _identified(bench: TestbedRun, name: str) -> PrefetchModel:
    plan = PrefetchPlan(setting=Setting(delay_s=DELAYS_S[name]), levels=LEVELS)
    with TestbedRun(bench.engine, plan, _summary_lines, is_simulated=True) as there:
        model = there.model()
    bench.progress(f"{name}: a unit of prefetch is worth {model.worth_per_s:.0f} msg/s")
    return model


def _steered(
    bench: TestbedRun, by: str, models: dict[str, PrefetchModel], target_per_s: float
) -> ProfileRun:
    goal = PrefetchGoal(
        rate_per_s=target_per_s,
        settle_s=SETTLE_S,
        sample_s=SAMPLE_S,
        high=PREFETCH_MAX,
        adaptive=False,
        model=models.get(by),
    )
    schedule = WorkloadSchedule(models) if by == SCHEDULED else None
    scene = SimulatedTestbed(bench.engine, Setting(delay_s=DELAYS_S[VISITS[0]]))
    visits: list[WorkloadPeriod] = []
    with scene.consumer(1) as consumer:
        consumer.steer(goal, schedule)
        for workload in VISITS:
            scene.set_delay(DELAYS_S[workload])
            # Twice the settling time: the second half is measured.
            rates = consumer.watch(2.0 * SETTLE_S + 0.2).rates(SAMPLE_S)
            visits.append(
                WorkloadPeriod(
                    workload,
                    rates,
                    back_after_s(rates, target_per_s, SAMPLE_S, WITHIN),
                    RateSpread.of(rates[-int(SETTLE_S / SAMPLE_S) :]),
                )
            )
        chosen = [
            note.rpartition(" ")[2]
            for step in consumer.track.steps
            for note in step.notes
            if note.startswith("scheduled")
        ]
    run = ProfileRun(by, visits, chosen)
    bench.progress(f"steered by {by}: settled {run.longest_s:.1f} s after a change at the latest")
    return run


def _draw_profiles(runs: list[ProfileRun], target_per_s: float, file: Path) -> None:
    panels = []
    for run in runs:
        rates = [rate for visit in run.visits for rate in visit.rates_per_s]
        began_s, moments = 0.0, {}
        for number, visit in enumerate(run.visits, start=1):
            moments[f"{number}: {visit.workload}"] = began_s
            began_s += SAMPLE_S * len(visit.rates_per_s)
        panels.append(
            Panel(
                f"Model: {run.by}",
                "seconds",
                "arrival rate, msg/s",
                [Line("sampled", [SAMPLE_S * (k + 1) for k in range(len(rates))], rates)],
                levels={"target": target_per_s},
                moments=moments,
            )
        )
    draw_rows(panels, file, same_scale=True)


def _summary_lines(line: str) -> None:
    """Ignore the progress of the identifications."""
