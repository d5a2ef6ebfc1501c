"""The elastic queues paper at its own numbers in virtual time, for `tidegate lab run … --simulate`.

The product's control loops run against a simulated plant, on the same ramps with three policies:
"load" (the paper's, with a look ahead), the paper's listing as printed, and feed-forward. Each of
the paper's figures 4 to 8 becomes one drawing. Bars define when an effect of the paper counts as
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from tidegate.core.topology import ScalingPolicy
from tidegate.laws.scaling.load import LoadLawSettings
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import AS_PRINTED, Reference, draw_outcomes, name_of
from tidegate.simulation.run import SimulationResult, simulate
from tidegate.simulation.traces import PAPER, with_policy
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.elastic.contest import FIRST_SEED
from tidegate_lab.papers.elastic.traces import TRACES_MIN, traces_section
from tidegate_lab.report import (
    RESULTS,
    Drawing,
    ExperimentSection,
    ExperimentsReport,
    Progress,
    chosen_from,
    folder_of,
    render,
    run_experiments,
)

__all__ = ["EXPERIMENTS", "SimulatedOptions", "render", "run_simulated"]

TRACES = 500
_POLICIES = (ScalingPolicy.LOAD, ScalingPolicy.FEED_FORWARD)
# The paper: co-provisioning halves the peaks.
_RATIO = (0.4, 0.6)
_FIFTH = 5
_PAPER_RATE = {"the paper: up to 750 msg/s": 750.0}
_NOTICED = (
    "The listing as printed notices a load above max_load when it is above it, so it is above for "
    "a polling interval (1 s) with each worker. The policy load is that listing, and looks a "
    "worker's start ahead (laws/scaling/load.py). Seconds above max_load are all of them; late is "
    "what goes beyond that interval, and bars about it are ours, beyond the issue."
)

Runs = dict[str, dict[str, SimulationResult]]


class SimulatedOptions(msgspec.Struct, frozen=True):
    """Which experiments to run, over how many traces, and where the results go."""

    only: Sequence[str] = ()
    traces: int = TRACES
    # The first seed of the unseen traces; tuning always uses the same traces.
    seed: int = FIRST_SEED
    results: Path = RESULTS
    # The folder below `results/elastic-queues`; `None` uses the time of the run.
    name: str | None = None
    quick: bool = False

    def experiments(self) -> list[str]:
        """Return the chosen experiments in their order.

        Raise `ValueError` if a name is unknown, there are too few traces, or the seeds overlap with
        the tuning traces.
        """
        if self.traces < TRACES_MIN:
            raise ValueError(f"at least {TRACES_MIN} traces: both halves need every kind")
        if 0 < abs(self.seed - FIRST_SEED) < self.traces:
            raise ValueError(
                f"seeds from {self.seed} on are among those that policies are tuned on: "
                f"{FIRST_SEED} itself, or at least {self.traces} away from it"
            )
        return chosen_from(list(EXPERIMENTS), self.only)

    @property
    def traces_wanted(self) -> int:
        return min(self.traces, TRACES_MIN) if self.quick else self.traces


def run_simulated(
    options: SimulatedOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments, and write their results."""

    def bound(make: _Make) -> Callable[[Path, Progress], ExperimentSection]:
        return lambda folder, progress: make(options, folder, progress)

    return run_experiments(
        {name: bound(EXPERIMENTS[name]) for name in options.experiments()},
        folder=folder_of(options.results, "elastic-queues", options.name),
        title="The elastic queues paper's experiments on Tidegate, simulated",
        theirs="Elastic queues",
        introduction=(
            "The loops that steer real queues ran unchanged against a plant in virtual time, with "
            "the paper's own numbers: workers of 100 msg/s, min_load 50 and max_load 200 messages, "
            "machines that boot for 96.9 s, a ramp of 0.5 msg/s² (the fast one of 4 msg/s²) to 750 "
            "msg/s. Nothing was started; docs/simulation.md says what the plant is and is not."
            + (" A quick run: it shows that everything works." if options.quick else "")
        ),
        progress=progress,
    )


def _co_provisioning(
    options: SimulatedOptions, folder: Path, progress: Progress
) -> ExperimentSection:
    runs = _runs(("figure-4", "figure-5"), progress)
    one, two = (runs[name]["load"] for name in runs)
    ratio = two.average_load_peak / one.average_load_peak
    return _section(
        runs,
        folder,
        name="co-provisioning",
        title="One and two workers on a machine, none warm",
        source="Elastic queues, §IV-A, figures 4 and 5",
        paper=(
            "Peaks of the average load while a machine boots; two workers on a machine halve them, "
            "with half the machines."
        ),
        ours=(
            f"The peak of the average load falls from {one.average_load_peak:.0f} to "
            f"{two.average_load_peak:.0f} messages ({ratio:.2f} of it), with "
            f"{two.machines_peak} machines instead of {one.machines_peak}."
        ),
        paper_figures={
            "figure-4": Reference(rate_per_s=_PAPER_RATE),
            "figure-5": Reference(
                rate_per_s=_PAPER_RATE,
                average_load={"half of figure 4 (the paper: halved)": one.average_load_peak / 2},
            ),
        },
        bars=[
            Bar("peak average load, two workers a machine ÷ one", ratio, _RATIO[0], ""),
            Bar(
                "peak average load, two workers a machine ÷ one", ratio, _RATIO[1], "", at_most=True
            ),
        ],
    )


def _warm(options: SimulatedOptions, folder: Path, progress: Progress) -> ExperimentSection:
    runs = _runs(("figure-6",), progress)
    found = runs["figure-6"]["load"]
    return _section(
        runs,
        folder,
        name="warm",
        title="Two workers on a machine, one machine warm",
        source="Elastic queues, §IV-B, figure 6",
        paper="One pre-provisioned machine removes the impact of booting completely.",
        ours=(
            f"{_above_in_words(runs['figure-6'])} Late, beyond the second that notices: "
            f"{found.late_s:.0f} s."
        ),
        paper_figures={"figure-6": Reference(rate_per_s=_PAPER_RATE)},
        bars=[
            *_never_above("one warm machine", runs["figure-6"]),
            Bar(
                "one warm machine: late above max_load, policy load",
                found.late_s,
                0.0,
                "s",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[_NOTICED],
    )


def _fast_ramp(options: SimulatedOptions, folder: Path, progress: Progress) -> ExperimentSection:
    runs = _runs(("figure-7", "figure-8"), progress)
    one, two = (runs[name]["load"] for name in runs)
    awaited = worker_waited_for(one)
    return _section(
        runs,
        folder,
        name="fast-ramp",
        title="Eight times the ramp: one warm machine and two",
        source="Elastic queues, §IV-C, figures 7 and 8",
        paper=(
            "With one warm machine the first four workers come in time and the fifth has to wait "
            "for a boot; NPP = ceil(4 × 96.9 / 200) = 2 warm machines are enough."
        ),
        ours=(
            f"With two warm machines: {_above_in_words(runs['figure-8'])} Late, beyond the second "
            f"that notices: {two.late_s:.0f} s; with one warm machine {one.late_s:.0f} s, from the "
            f"moment that worker {awaited} is missing."
        ),
        paper_figures={
            "figure-7": Reference(
                replicas={"the paper: four come in time, the fifth waits for a boot": _FIFTH - 1.0}
            )
        },
        bars=[
            *_never_above("two warm machines", runs["figure-8"]),
            Bar(
                "one warm machine: the worker that is waited for, away from the fifth",
                None if awaited is None else float(abs(awaited - _FIFTH)),
                0.0,
                "workers",
                at_most=True,
            ),
            Bar(
                "one warm machine: late above max_load, policy load",
                one.late_s,
                1.0,
                "s",
                beyond_the_issue=True,
            ),
            Bar(
                "two warm machines: late above max_load, policy load",
                two.late_s,
                0.0,
                "s",
                at_most=True,
                beyond_the_issue=True,
            ),
        ],
        notes=[_NOTICED],
    )


def _traces(options: SimulatedOptions, folder: Path, progress: Progress) -> ExperimentSection:
    return traces_section(options.traces_wanted, options.seed, folder, progress)


_Make = Callable[[SimulatedOptions, Path, Progress], ExperimentSection]

EXPERIMENTS: dict[str, _Make] = {
    "co-provisioning": _co_provisioning,
    "warm": _warm,
    "fast-ramp": _fast_ramp,
    "traces": _traces,
}


def _never_above(what: str, by_policy: Mapping[str, SimulationResult]) -> list[Bar]:
    """Return bars of 0 s above max_load, for the paper's policy and for ours."""
    return [
        Bar(
            f"{what}: seconds above max_load, policy {name_of(policy.value)}",
            by_policy[policy.value].above_s,
            0.0,
            "s",
            at_most=True,
        )
        for policy in _POLICIES
    ]


def _above_in_words(by_policy: Mapping[str, SimulationResult]) -> str:
    theirs, ours = (by_policy[policy.value] for policy in _POLICIES)
    return (
        f"{theirs.above_s:.0f} s above max_load under load (peak {theirs.average_load_peak:.0f} "
        f"messages; {by_policy[AS_PRINTED].above_s:.0f} s as printed, a poll for each worker), "
        f"{ours.above_s:.0f} s under feed-forward (peak {ours.average_load_peak:.0f})."
    )


def worker_waited_for(outcome: SimulationResult) -> int | None:
    """Return the number of the worker that was missing when the load first stayed above max_load.

    `None` means that it never did.
    """
    series, high = outcome.series, outcome.max_load
    for (before, now), workers in zip(
        pairwise(series.average_load), series.replicas[1:], strict=True
    ):
        if before > high and now > high:
            return workers + 1
    return None


def _runs(names: Sequence[str], progress: Progress) -> Runs:
    runs: Runs = {}
    for name in names:
        progress(f"{PAPER[name].about} …")
        printed = simulate(PAPER[name], elasticity=LoadLawSettings(looks_ahead=False))
        runs[name] = {
            AS_PRINTED: msgspec.structs.replace(printed, policy=AS_PRINTED),
            **{policy.value: simulate(with_policy(PAPER[name], policy)) for policy in _POLICIES},
        }
    return runs


def _section(
    runs: Runs,
    folder: Path,
    *,
    name: str,
    title: str,
    source: str,
    paper: str,
    ours: str,
    bars: Sequence[Bar],
    paper_figures: Mapping[str, Reference],
    notes: Sequence[str] = (),
) -> ExperimentSection:
    drawings = []
    for scenario, by_policy in runs.items():
        file = f"{scenario}.png"
        draw_outcomes(
            list(by_policy.values()),
            folder / file,
            title=PAPER[scenario].about,
            paper=paper_figures.get(scenario),
        )
        drawings.append(
            Drawing(
                file,
                f"{PAPER[scenario].about}; dashed the ideal ceil(rate / 100). The paper prints no "
                "average load at its peaks; dotted are max_load and what it does say.",
            )
        )
    return ExperimentSection(
        name=name,
        title=title,
        source=source,
        paper=paper,
        ours=ours,
        drawings=drawings,
        tables=[_table(runs)],
        bars=bars,
        notes=notes,
        data={
            scenario: {policy: one.as_json() for policy, one in by_policy.items()}
            for scenario, by_policy in runs.items()
        },
    )


def _table(runs: Runs) -> ReportTable:
    rows = [
        [
            scenario.replace("-", " "),
            name_of(policy),
            f"{one.average_load_peak:.0f}",
            f"{one.above_s:.0f}",
            f"{one.late_s:.0f}",
            str(one.replicas_peak),
            str(one.machines_peak),
            f"{one.machine_s:.0f}",
            str(one.reversals),
        ]
        for scenario, by_policy in runs.items()
        for policy, one in by_policy.items()
    ]
    return ReportTable(
        "The paper's policy, and ours on the same ramp",
        [
            *("figure", "policy", "peak load", "s above max_load", "of it late", "workers max"),
            *("machines max", "machine-s", "reversals"),
        ],
        rows,
    )
