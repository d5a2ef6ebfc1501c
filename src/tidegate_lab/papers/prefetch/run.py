"""`tidegate lab run prefetch-control`: the paper's experiments and those of its future work.

The plant is a consumer behind a network with a delay. Its input is the prefetch, and its output is
the rate at which it receives messages. A testbed (`stage`) consists of a broker, publishers, the
network and the consumer. It runs as real processes (`scene`) or in virtual time (`simulated`).

    fig3            open loop: the rate at each prefetch
    table2          the model y(k+1) = a·y(k) + b·u(k), identified by least squares
    design          the paper's controllers, and a proof of stability; nothing is measured
    fig5            closed loop (figures 5 to 7): P, PI and PID control
    fig6            PI with samples as long as the paper's; runs only if it is named
    disturbances    bursts, slow handlers, longer delays, bad measurements
    profiles        two workloads with a model for each; always in virtual time
    contest         the controlled prefetch beside fixed ones

The experiments share one testbed, one open loop and one model (`bench`), which are made when an
experiment first needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate_lab.papers.prefetch.closed_loop import (
    TestbedRun,
    closed_loop_section,
    long_samples_section,
)
from tidegate_lab.papers.prefetch.contest import contest_section, profiles_section
from tidegate_lab.papers.prefetch.design import design_section
from tidegate_lab.papers.prefetch.disturbances import disturbances_section
from tidegate_lab.papers.prefetch.open_loop import model_section, open_loop_section
from tidegate_lab.papers.prefetch.plan import BrokerKind, PrefetchPlan
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

__all__ = ["EXPERIMENTS", "PrefetchOptions", "render", "run_prefetch"]

_Make = Callable[[TestbedRun, Path], ExperimentSection]

EXPERIMENTS: dict[str, _Make] = {
    "fig3": open_loop_section,
    "table2": model_section,
    "design": design_section,
    "fig5": closed_loop_section,
    "fig6": long_samples_section,
    "disturbances": disturbances_section,
    "profiles": profiles_section,
    "contest": contest_section,
}
# Runs only if it is named, because it takes 15 minutes; `--full` has it in another experiment.
WHEN_NAMED = ("fig6",)


class PrefetchOptions(msgspec.Struct, frozen=True):
    """The experiments to run, their size, the broker, and the folder of the results."""

    engine: BrokerKind = BrokerKind.RABBITMQ
    only: Sequence[str] = ()
    # The sizes of the paper, which take hours.
    full: bool = False
    quick: bool = False
    # Simulates in virtual time instead of real processes.
    simulate: bool = False
    results: Path = RESULTS
    # The folder below `results/prefetch-control`; None names it by the time of the run.
    name: str | None = None

    def experiments(self) -> list[str]:
        """Return the chosen experiments in order, or raise `ValueError` for an unknown name."""
        chosen = chosen_from(list(EXPERIMENTS), self.only)
        return [name for name in chosen if name in self.only or name not in WHEN_NAMED]

    @property
    def plan(self) -> PrefetchPlan:
        if self.quick:
            return PrefetchPlan.quick()
        return PrefetchPlan.full() if self.full else PrefetchPlan()


def run_prefetch(
    options: PrefetchOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments and write their results."""
    chosen = options.experiments()
    bench = TestbedRun(options.engine, options.plan, progress, is_simulated=options.simulate)
    with bench:

        def bound(make: _Make) -> Callable[[Path, Progress], ExperimentSection]:
            return lambda folder, progress: make(bench, folder)

        return run_experiments(
            {name: bound(EXPERIMENTS[name]) for name in chosen},
            folder=folder_of(options.results, "prefetch-control", options.name),
            title=f"The prefetch control paper's experiments{_where(options)}",
            theirs="Prefetch control",
            introduction=_introduction(options),
            progress=progress,
        )


def _where(options: PrefetchOptions) -> str:
    on = {BrokerKind.RABBITMQ: " on RabbitMQ", BrokerKind.TIDEGATE: " on Tidegate"}[options.engine]
    return f"{on}, simulated" if options.simulate else on


def _introduction(options: PrefetchOptions) -> str:
    if options.simulate:
        return (
            "Simulated, in virtual time: broker, network, publishers and handler are events, each "
            "message one by one, and what steers is the heart of the loop that steers real ones."
        )
    by = {
        BrokerKind.RABBITMQ: "The loop runs in the worker, on RabbitMQ as Debian packages it.",
        BrokerKind.TIDEGATE: "The loop runs in the node, and the consumer knows nothing of it.",
    }
    return (
        "25 publishers, each with a pause of 10 ± 1 ms, messages of 256 bytes, a handler of 1 ms. "
        "The paper ran publishers, broker and consumer on machines of their own; here all share "
        "one, and the consumer is behind a proxy that adds 6 ms each way. "
        + by[options.engine]
        + (" A quick run: it shows that everything works." if options.quick else "")
    )
