"""`tidegate lab run elastic-queues`: the experiments of the elastic queues paper.

Theory of operation

The paper scales a queue with its load: machines boot for 96.9 s, each holds one or two workers, and
a worker handles 100 messages per second. There are three kinds of experiments.

- `queues` measures what one, two and four queues deliver on one machine (figure 3,
  `queues_per_machine`).
- `ramps` repeats figures 4 to 8 with real processes (`real`). Machines are process trees, time runs
  faster than in the paper by a stated factor, and the product's own control loop scales.
- With `--simulate`, `simulated` repeats figures 4 to 8 in virtual time at the paper's own numbers.
  It also compares the product's policies on hundreds of generated traces (`traces`, `contest`).

The main result of a run is the time for which the average load (waiting messages per worker) was
above `max_load`. A part of it is *late*: no slot was free, so a machine had to boot first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.lab.elastic.queues_per_machine import QueuesPlan, queues_per_machine_section
from tidegate.lab.elastic.real import RealPlan, real_section
from tidegate.lab.report.experiments import (
    RESULTS,
    ExperimentsReport,
    Progress,
    chosen_from,
    folder_of,
    render,
    run_experiments,
)
from tidegate.lab.report.section import Section

__all__ = ["EXPERIMENTS", "ElasticOptions", "render", "run_elastic"]


class ElasticOptions(msgspec.Struct, frozen=True):
    """Which experiments to run, how large, and where the results go."""

    only: Sequence[str] = ()
    # Use slower clocks and the paper's whole ramp; takes most of an hour.
    full: bool = False
    quick: bool = False
    results: Path = RESULTS
    # The folder below `results/elastic-queues`; `None` uses the time of the run.
    name: str | None = None

    def experiments(self) -> list[str]:
        """Return the chosen experiments in their order; raise `ValueError` if a name is unknown."""
        return chosen_from(list(EXPERIMENTS), self.only)


def _queues(options: ElasticOptions, folder: Path, progress: Progress) -> Section:
    plan = QueuesPlan.quick() if options.quick else QueuesPlan()
    return queues_per_machine_section(QueuesPlan.full() if options.full else plan, folder, progress)


def _ramps(options: ElasticOptions, folder: Path, progress: Progress) -> Section:
    plan = RealPlan.quick() if options.quick else RealPlan()
    return real_section(RealPlan.full() if options.full else plan, folder, progress)


_Make = Callable[[ElasticOptions, Path, Progress], Section]

EXPERIMENTS: dict[str, _Make] = {"queues": _queues, "ramps": _ramps}


def run_elastic(
    options: ElasticOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments, and write their results."""

    def bound(make: _Make) -> Callable[[Path, Progress], Section]:
        return lambda folder, progress: make(options, folder, progress)

    return run_experiments(
        {name: bound(EXPERIMENTS[name]) for name in options.experiments()},
        folder=folder_of(options.results, "elastic-queues", options.name),
        title="The elastic queues paper's experiments on Tidegate",
        theirs="Elastic queues",
        introduction=(
            "The paper ran on small machines in Amazon's cloud; this ran on one, with machines as "
            "process trees, workers of a stated rate and time scaled by a factor that is printed. "
            "With --simulate the same loops run at the paper's own numbers in virtual time."
            + (" A quick run: it shows that everything works." if options.quick else "")
        ),
        progress=progress,
    )
