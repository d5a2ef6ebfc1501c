"""Workload profiles, which are future work of the paper: one model for each workload.

There are two workloads; the network delay of one is four times that of the other. A model of each
is identified as `tidegate tune` does. Then one consumer changes between the workloads. Three runs
use the model of the first, the model of the second, or the model of the current workload. The law
`laws/workload_schedule` recognizes the current workload by the rate per unit of prefetch.

The experiment always runs in virtual time, so that the runs differ in the law only.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.lab.bench.bars import Bar
from tidegate.lab.prefetch.bench import Bench
from tidegate.lab.prefetch.plan import PREFETCH_MAX, Plan
from tidegate.lab.prefetch.simulated import SimulatedScene
from tidegate.lab.prefetch.stage import Setting
from tidegate.lab.prefetch.track import Spread, back_after_s
from tidegate.lab.report.figures import Line, Panel, draw_rows
from tidegate.lab.report.section import Drawing, Section
from tidegate.laws.workload_schedule import WorkloadSchedule
from tidegate.report.chart import Table

NEAR, FAR, SCHEDULED = "near", "far", "whichever is at hand"
# The delay in each direction.
DELAYS_S = {NEAR: 0.003, FAR: 0.012}
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)
SAMPLE_S, SETTLE_S = 0.5, 10.0
# The sequence of workloads.
VISITS = (NEAR, FAR, NEAR, FAR, NEAR)
WITHIN = 0.05


class Visit(msgspec.Struct, frozen=True):
    """A period with one workload, from its start."""

    workload: str
    rates_per_s: list[float]
    settled_after_s: float
    # The rates after the settling time.
    spread: Spread


class Steered(msgspec.Struct, frozen=True):
    """The run with one choice of models."""

    by: str
    visits: list[Visit]
    # The chosen model at each change.
    chosen: list[str]

    @property
    def longest_s(self) -> float:
        """The longest settling time, without the first period, which begins at prefetch 1."""
        return max(one.settled_after_s for one in self.visits[1:])

    @property
    def deviation_per_s(self) -> float:
        return max(one.spread.deviation_per_s for one in self.visits)


def profiles_section(bench: Bench, folder: Path) -> Section:
    """Run the three choices of models over the same sequence of workloads."""
    target = Plan().target_per_s
    models = {name: _identified(bench, name) for name in DELAYS_S}
    runs = [_steered(bench, by, models, target) for by in (NEAR, FAR, SCHEDULED)]
    scheduled = runs[-1]
    _draw(runs, target, folder / "profiles.png")
    return Section(
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
            Table(
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
            Table(
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


def _identified(bench: Bench, name: str) -> PrefetchModel:
    plan = Plan(setting=Setting(delay_s=DELAYS_S[name]), levels=LEVELS)
    with Bench(bench.engine, plan, _unheard, is_simulated=True) as there:
        model = there.model()
    bench.progress(f"{name}: a unit of prefetch is worth {model.worth_per_s:.0f} msg/s")
    return model


def _steered(
    bench: Bench, by: str, models: dict[str, PrefetchModel], target_per_s: float
) -> Steered:
    goal = PrefetchGoal(
        rate_per_s=target_per_s,
        settle_s=SETTLE_S,
        sample_s=SAMPLE_S,
        high=PREFETCH_MAX,
        adaptive=False,
        model=models.get(by),
    )
    schedule = WorkloadSchedule(models) if by == SCHEDULED else None
    scene = SimulatedScene(bench.engine, Setting(delay_s=DELAYS_S[VISITS[0]]))
    visits: list[Visit] = []
    with scene.consumer(1) as consumer:
        consumer.steer(goal, schedule)
        for workload in VISITS:
            scene.set_delay(DELAYS_S[workload])
            # Twice the settling time: the second half is measured.
            rates = consumer.watch(2.0 * SETTLE_S + 0.2).rates(SAMPLE_S)
            visits.append(
                Visit(
                    workload,
                    rates,
                    back_after_s(rates, target_per_s, SAMPLE_S, WITHIN),
                    Spread.of(rates[-int(SETTLE_S / SAMPLE_S) :]),
                )
            )
        chosen = [
            note.rpartition(" ")[2]
            for step in consumer.track.steps
            for note in step.notes
            if note.startswith("scheduled")
        ]
    run = Steered(by, visits, chosen)
    bench.progress(f"steered by {by}: settled {run.longest_s:.1f} s after a change at the latest")
    return run


def _draw(runs: list[Steered], target_per_s: float, file: Path) -> None:
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


def _unheard(line: str) -> None:
    """Ignore the progress of the identifications."""
