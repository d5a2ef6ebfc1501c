"""`tidegate lab run telesto`: the experiments of chapter 5 of the Telesto report.

Theory of operation

All experiments put Telesto's mix of clients (`mix`) on a fresh server and measure its throughput
and response times. They differ in the parameter they change.

1. `trial.run_trial` starts nodes with an empty store, starts the clients (`crew`), and lets them
   warm up. It then measures windows of equal length. It stops when the 95 % interval of the
   throughput is below 5 % of the mean, or at the allowed number of windows.
2. Clients run in two child processes (module `crew`). They count messages, packets and response
   times per type of request (`tally`). The parent samples the counters; the difference of two
   samples is a window.
3. The nodes measure the phases of each request; two samples of their stats give the table of phases
   (`phases`).
4. At the end, the messages put must equal the messages taken and left in the queues; otherwise the
   experiment fails. A wrong counter in a reply fails it as well.

`stability` and `distribution` share one long run. `phases` uses the default mix. The other
experiments are sweeps of one parameter (`sweeps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate_lab.papers.telesto import phases as phases_module
from tidegate_lab.papers.telesto import sweeps
from tidegate_lab.papers.telesto.crew import MessagesLost
from tidegate_lab.papers.telesto.phases import Progress, TelestoPlan, TelestoTrial
from tidegate_lab.papers.telesto.sweeps import SweepValues
from tidegate_lab.report import (
    RESULTS,
    Experiment,
    ExperimentFailed,
    ExperimentSection,
    ExperimentsReport,
    chosen_from,
    folder_of,
    render,
    run_experiments,
)

__all__ = ["EXPERIMENTS", "TelestoOptions", "render", "run_telesto"]

CLIENTS = 90
STABILITY_SECONDS = 300.0


class TelestoOptions(msgspec.Struct, frozen=True):
    """Which experiments to run, how long, and where the results go."""

    only: Sequence[str] = ()
    # The length of each window of a sweep, in seconds.
    seconds: float = 5.0
    repeats_max: int = 8
    stability_seconds: float = STABILITY_SECONDS
    # The length of the long run; the paper used 2. Takes precedence over `stability_seconds`.
    hours: float | None = None
    results: Path = RESULTS
    # The folder below `results/telesto`; `None` uses the time of the run.
    name: str | None = None
    quick: bool = False

    def experiments(self) -> list[str]:
        """Return the chosen experiments in their order; raise `ValueError` if a name is unknown."""
        return chosen_from(list(EXPERIMENTS), self.only)

    @property
    def clients(self) -> int:
        return 9 if self.quick else CLIENTS

    @property
    def run_seconds(self) -> float:
        if self.hours is not None:
            return 3600.0 * self.hours
        return min(self.stability_seconds, 5.0) if self.quick else self.stability_seconds

    @property
    def plan(self) -> TelestoPlan:
        if self.quick:
            return TelestoPlan(seconds=0.4, repeats_min=2, repeats_max=2, warm_up_s=0.3)
        return TelestoPlan(seconds=self.seconds, repeats_max=self.repeats_max)

    @property
    def values(self) -> SweepValues:
        return SweepValues.quick() if self.quick else SweepValues(clients=self.clients)


class _Run:
    """State that the experiments of a run share."""

    def __init__(self, options: TelestoOptions, folder: Path, progress: Progress) -> None:
        self.options = options
        self.folder = folder
        self.progress = progress
        self._long_run: TelestoTrial | None = None

    def long_run(self) -> TelestoTrial:
        """Return the long run; measure it at the first call."""
        if self._long_run is None:
            options = self.options
            self._long_run = phases_module.measure_stability(
                options.clients, options.run_seconds, self.progress
            )
        return self._long_run

    def stability(self) -> ExperimentSection:
        return phases_module.stability_section(
            self.long_run(), self.options.run_seconds, self.folder
        )

    def distribution(self) -> ExperimentSection:
        return phases_module.distribution_section(self.long_run(), self.folder)

    def phases(self) -> ExperimentSection:
        trial = phases_module.measure_phases(self.options.clients, self.options.plan, self.progress)
        return phases_module.phases_section(trial, self.folder)

    def sweep(
        self, make: Callable[[SweepValues, TelestoPlan, Progress, Path], ExperimentSection]
    ) -> ExperimentSection:
        return make(self.options.values, self.options.plan, self.progress, self.folder)


EXPERIMENTS: dict[str, Callable[[_Run], ExperimentSection]] = {
    "stability": _Run.stability,
    "distribution": _Run.distribution,
    "phases": _Run.phases,
    "writers": lambda run: run.sweep(sweeps.writers_section),
    "connections": lambda run: run.sweep(sweeps.connections_section),
    "both": lambda run: run.sweep(sweeps.both_section),
    "retry": lambda run: run.sweep(sweeps.retry_section),
    "clients": lambda run: run.sweep(sweeps.clients_section),
    "storeless": lambda run: run.sweep(sweeps.storeless_section),
}


def run_telesto(
    options: TelestoOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments, and write their results."""
    chosen = options.experiments()
    folder = folder_of(options.results, "telesto", options.name)
    run = _Run(options, folder, progress)

    def bound(make: Callable[[_Run], ExperimentSection]) -> Experiment:
        def experiment(folder: Path, progress: Progress) -> ExperimentSection:
            try:
                return make(run)
            except MessagesLost as lost:
                raise ExperimentFailed(str(lost)) from lost

        return experiment

    return run_experiments(
        {name: bound(EXPERIMENTS[name]) for name in chosen},
        folder=folder,
        title="Telesto's experiments on Tidegate",
        theirs="Telesto",
        introduction=(
            "Telesto ran on four machines in Amazon's cloud; this ran on one, with the "
            "clients, the nodes and PostgreSQL sharing its cores, so figures are to be "
            "compared in shape and not in size. The mix is Telesto's: one way 5/9, "
            "request–response pairs 2/9, request–response pool 2/9, each client with one "
            "request under way at a time."
            + (" A quick run: it shows that everything works." if options.quick else "")
        ),
        progress=progress,
    )
