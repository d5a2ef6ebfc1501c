"""`tidegate lab run replicated-queues`: the experiments of the replicated queues paper, section 7.

Theory of operation

Each experiment measures what a figure of the paper shows, and puts the result next to the paper's.
There are two kinds of runs.

Real runs start nodes, PostgreSQL and client processes on this machine.

- `fig4`, `fig5` and `fig7` use one plain queue: its speed with a backlog (`waiting`), the best mix
  of producers and consumers, and its capacity (`mixes`).
- `scenarios`, `fig8` and `fig10` use a logical queue on two nodes: good and bad distributions of
  clients (`scenarios`, `distribution`), and growth from one replica to two (`growth`).

In the second group all processes share the machine's cores, so two replicas could not deliver twice
as much as one. Replicas therefore have a configured limit of messages per second, far below what
the cores allow, and clients have configured speeds (`logical`). These runs measure where clients
and messages are placed, not how fast the machine is.

Simulated runs (`--simulate`) use the paper's rates in virtual time, with the product's own control
loop (`simulated`). Rates are inputs there; the results are ratios between runs.

Each consumer checks the CRC of every message. At the end of a run the put messages must equal the
taken and the waiting ones, else the run fails (`crew`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate_lab.papers.replicated.cluster import Scale
from tidegate_lab.papers.replicated.distribution import distribution_section
from tidegate_lab.papers.replicated.growth import growth_section
from tidegate_lab.papers.replicated.mixes import capacity_section, mixes_section
from tidegate_lab.papers.replicated.scenarios import scenarios_section
from tidegate_lab.papers.replicated.simulated import SIMULATED
from tidegate_lab.papers.replicated.waiting import waiting_section
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

__all__ = ["EXPERIMENTS", "ReplicatedOptions", "render", "run_replicated"]

_Make = Callable[[Scale, Path, Progress], ExperimentSection]

EXPERIMENTS: dict[str, _Make] = {
    "fig4": waiting_section,
    "fig5": mixes_section,
    "fig7": capacity_section,
    "scenarios": scenarios_section,
    "fig8": distribution_section,
    "fig10": growth_section,
}


class ReplicatedOptions(msgspec.Struct, frozen=True):
    """Which experiments to run, how large, and where the results go."""

    only: Sequence[str] = ()
    # Use the paper's sizes; takes most of an hour.
    full: bool = False
    quick: bool = False
    # Simulate the paper's sizes in virtual time instead of running real processes.
    simulate: bool = False
    results: Path = RESULTS
    # The folder below `results/replicated-queues`; `None` uses the time of the run.
    name: str | None = None

    def experiments(self) -> list[str]:
        """Return the chosen experiments in their order.

        Raise `ValueError` if a name is unknown, or cannot be simulated.
        """
        if not self.simulate:
            return chosen_from(list(EXPERIMENTS), self.only)
        for name in self.only:
            if name in EXPERIMENTS and name not in SIMULATED:
                raise ValueError(
                    f"{name} is about one real queue: nothing is simulated of it. Simulated are: "
                    + ", ".join(SIMULATED)
                )
        return chosen_from(list(SIMULATED), self.only)

    @property
    def scale(self) -> Scale:
        if self.quick:
            return Scale.quick()
        return Scale.full() if self.full else Scale()


def run_replicated(
    options: ReplicatedOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments, and write their results."""
    scale = options.scale

    def bound(make: _Make) -> Callable[[Path, Progress], ExperimentSection]:
        return lambda folder, progress: make(scale, folder, progress)

    return run_experiments(
        {
            name: SIMULATED[name] if options.simulate else bound(EXPERIMENTS[name])
            for name in options.experiments()
        },
        folder=folder_of(options.results, "replicated-queues", options.name),
        title="The replicated queues paper's experiments on Tidegate",
        theirs="Replicated queues",
        introduction=_introduction(options),
        progress=progress,
    )


def _introduction(options: ReplicatedOptions) -> str:
    if options.simulate:
        return (
            "Simulated, in virtual time: the plant stands for replicas and clients, and the loop "
            "and the law of election that steer it are those that steer real queues. The paper's "
            "rates are put in, so that they come out again says nothing; only ratios between runs "
            "are found."
        )
    return (
        "The paper ran JORAM on a cluster of Mac minis, a queue on each; this ran on one machine, "
        "with clients, nodes and PostgreSQL sharing its cores, so figures are to be compared in "
        "shape and not in size. Messages have 1 KiB, queues are durable, and every client commits "
        "each message before it goes on to the next."
        + (" A quick run: it shows that everything works." if options.quick else "")
    )
