"""`tidegate lab run tapas`: the evaluation of the TAPAS report, repeated with Tidegate.

The application is a bookshop (`bookshop`) whose instances are processes (`shops`). Clients, also in
processes of their own (`clients`), connect to the instances directly or through a door (`ways`).

    overhead    figures 15, 16, 19 and 20: response time, throughput and processor time of doors
    whole       figures 15 and 16: all of `tidegate host` beside plain HAProxy
    agreement   figures 17, 18, 21 and 22: an agreement under a growing load (`keeping`, `oracle`)
    skew        not in the report: an instance that becomes slow, dies or hangs

Each experiment measures on real processes and returns a section of the report with its bars. All
processes share the machine, so a section also has the processor share of other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.core.services import Engine
from tidegate_lab.papers.tapas.keeping import keeping_section
from tidegate_lab.papers.tapas.overhead import overhead_section, whole_section
from tidegate_lab.papers.tapas.shops import TapasPlan
from tidegate_lab.papers.tapas.skew import skew_section
from tidegate_lab.report import (
    RESULTS,
    ExperimentSection,
    ExperimentsReport,
    Progress,
    chosen_from,
    folder_of,
    render,
    run_experiments,
)

__all__ = ["EXPERIMENTS", "TapasOptions", "render", "run_tapas"]

_Make = Callable[[TapasPlan, Path, Progress], ExperimentSection]

EXPERIMENTS: dict[str, _Make] = {
    "overhead": lambda plan, folder, progress: overhead_section(plan.overhead, folder, progress),
    "whole": lambda plan, folder, progress: whole_section(plan.whole, folder, progress),
    "agreement": lambda plan, folder, progress: keeping_section(plan.keeping, folder, progress),
    "skew": lambda plan, folder, progress: skew_section(plan.skew, folder, progress),
}


class TapasOptions(msgspec.Struct, frozen=True):
    """The experiments to run, their size, and the folder of the results."""

    only: Sequence[str] = ()
    quick: bool = False
    # The pairs of plain HAProxy and ours in each case; None means the plan's number.
    pairs: int | None = None
    # The door of our instances in the experiment `agreement`.
    engine: Engine = Engine.GATEWAY
    results: Path = RESULTS
    # The folder below `results/tapas`; None names it by the time of the run.
    name: str | None = None

    def experiments(self) -> list[str]:
        """Return the chosen experiments in order, or raise `ValueError` for an unknown name."""
        return chosen_from(list(EXPERIMENTS), self.only)

    @property
    def plan(self) -> TapasPlan:
        plan = TapasPlan.quick() if self.quick else TapasPlan()
        keeping = msgspec.structs.replace(plan.keeping, engine=self.engine)
        plan = msgspec.structs.replace(plan, keeping=keeping)
        return plan if self.pairs is None else plan.of_pairs(self.pairs)


def run_tapas(options: TapasOptions, progress: Progress = lambda line: None) -> ExperimentsReport:
    """Run the chosen experiments and write their results."""
    plan = options.plan

    def bound(make: _Make) -> Callable[[Path, Progress], ExperimentSection]:
        return lambda folder, progress: make(plan, folder, progress)

    return run_experiments(
        {name: bound(EXPERIMENTS[name]) for name in options.experiments()},
        folder=folder_of(options.results, "tapas", options.name),
        title="The TAPAS report's experiments",
        theirs="TAPAS",
        introduction=(
            "A bookshop (choose, add, remove, buy, confirm) with a database of its own on each "
            "instance, and clients in sessions of ten operations. The report had a machine for "
            "each server and one for the clients; here all share two cores, so an instance has a "
            "stated concurrency and service time where its capacity matters."
            + (" A quick run: it shows that everything works." if options.quick else "")
        ),
        progress=progress,
    )
