"""`tidegate lab run telesto`: every experiment of the report's chapter 5, ours beside theirs.

Strategy: experiments run one after another, each on fresh servers, and each leaves a JSON file
and a PNG; at the end one page shows all that were run. An experiment that fails is reported as
failed and the others go on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.child import ChildFailed
from tidegate.lab.bench.compare import describe_machine
from tidegate.lab.bench.compare_table import bar_table
from tidegate.lab.peers.server import ServerFailed
from tidegate.lab.report.page import Page, write_page
from tidegate.lab.report.section import Section, write_json
from tidegate.lab.telesto import phase_shares, stability, sweeps
from tidegate.lab.telesto.crew import MessagesLost
from tidegate.lab.telesto.sweeps import SweepValues
from tidegate.lab.telesto.trial import Plan, Progress, Trial

RESULTS = Path("results")
CLIENTS = 90
STABILITY_SECONDS = 300.0
_FAILURES = (ChildFailed, ServerFailed, MessagesLost)


class TelestoOptions(msgspec.Struct, frozen=True):
    """Which experiments, how long, and where to."""

    only: Sequence[str] = ()
    # Length of each window of a sweep.
    seconds: float = 5.0
    repeats_max: int = 8
    stability_seconds: float = STABILITY_SECONDS
    # As in the paper: 2. Overrides `stability_seconds`.
    hours: float | None = None
    results: Path = RESULTS
    # The folder below `results/telesto`; None for the time of the run.
    name: str | None = None
    quick: bool = False

    def experiments(self) -> list[str]:
        """The chosen ones in order, or a sentence about a name that is none."""
        for name in self.only:
            if name not in EXPERIMENTS:
                raise ValueError(
                    f"no experiment is called {name!r}; there are: {', '.join(EXPERIMENTS)}"
                )
        return [name for name in EXPERIMENTS if not self.only or name in self.only]

    @property
    def clients(self) -> int:
        return 9 if self.quick else CLIENTS

    @property
    def run_seconds(self) -> float:
        if self.hours is not None:
            return 3600.0 * self.hours
        return min(self.stability_seconds, 5.0) if self.quick else self.stability_seconds

    @property
    def plan(self) -> Plan:
        if self.quick:
            return Plan(seconds=0.4, repeats_min=2, repeats_max=2, warm_up_s=0.3)
        return Plan(seconds=self.seconds, repeats_max=self.repeats_max)

    @property
    def values(self) -> SweepValues:
        return SweepValues.quick() if self.quick else SweepValues(clients=self.clients)


class TelestoReport(msgspec.Struct, frozen=True):
    """What all experiments found, and where it is."""

    folder: Path
    sections: list[Section]
    failed: dict[str, str]
    environment: dict[str, str]

    @property
    def page(self) -> Path:
        return self.folder / "index.html"

    @property
    def bars(self) -> list[Bar]:
        return [bar for section in self.sections for bar in section.bars]

    @property
    def met(self) -> bool:
        return not self.failed and all(bar.met for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "folder": str(self.folder),
            "page": str(self.page),
            "experiments": {section.name: section.as_json() for section in self.sections},
            "failed": self.failed,
            "environment": self.environment,
            "met": self.met,
        }


class _Run:
    """What experiments of one run share."""

    def __init__(self, options: TelestoOptions, folder: Path, progress: Progress) -> None:
        self.options = options
        self.folder = folder
        self.progress = progress
        self._long_run: Trial | None = None

    def long_run(self) -> Trial:
        """Measured once, shown by two figures."""
        if self._long_run is None:
            options = self.options
            self._long_run = stability.measure(options.clients, options.run_seconds, self.progress)
        return self._long_run

    def stability(self) -> Section:
        return stability.stability_section(self.long_run(), self.options.run_seconds, self.folder)

    def distribution(self) -> Section:
        return stability.distribution_section(self.long_run(), self.folder)

    def phases(self) -> Section:
        trial = phase_shares.measure(self.options.clients, self.options.plan, self.progress)
        return phase_shares.phases_section(trial, self.folder)

    def sweep(self, make: Callable[[SweepValues, Plan, Progress, Path], Section]) -> Section:
        return make(self.options.values, self.options.plan, self.progress, self.folder)


EXPERIMENTS: dict[str, Callable[[_Run], Section]] = {
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


def run_telesto(options: TelestoOptions, progress: Progress = lambda line: None) -> TelestoReport:
    """Run the chosen experiments, and write what they found."""
    chosen = options.experiments()
    began = datetime.datetime.now(datetime.UTC)
    folder = options.results / "telesto" / (options.name or began.strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(options, folder, progress)
    sections: list[Section] = []
    failed: dict[str, str] = {}
    for name in chosen:
        progress(f"{name} …")
        try:
            section = EXPERIMENTS[name](run)
        except _FAILURES as failure:
            failed[name] = str(failure)
            progress(f"{name} FAILED: {failure}")
            continue
        write_json(section.as_json(), folder / f"{name}.json")
        sections.append(section)
    report = TelestoReport(folder, sections, failed, describe_machine())
    write_json(report.as_json(), folder / "report.json")
    write_page(
        Page(
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
            sections=sections,
            environment=report.environment,
            when=began.strftime("%Y-%m-%d %H:%M UTC"),
        ),
        folder,
    )
    return report


def render(report: TelestoReport, console: Console) -> None:
    """Print what was found, in words and verdicts."""
    table = Table(title="Telesto's experiments", show_lines=True)
    for column in ("experiment", "Telesto", "Tidegate"):
        table.add_column(column)
    for section in report.sections:
        table.add_row(section.title, section.paper, section.ours)
    console.print(table)
    if report.bars:
        console.print(bar_table(report.bars))
    for name, why in report.failed.items():
        console.print(f"{name} failed: {why}", style="red", markup=False)
    console.print(f"{report.page}", markup=False)


def main(arguments: Sequence[str]) -> int:
    """From a command line; not 0 when an experiment failed."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.lab.telesto.run")
    parser.add_argument("--only", default="", help=f"by commas, of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    parser.add_argument("--seconds", type=float, default=5.0, help="each window of a sweep")
    parser.add_argument("--stability-seconds", type=float, default=STABILITY_SECONDS)
    parser.add_argument("--hours", type=float, help="the long run; the paper's was 2")
    parser.add_argument("--repeats-max", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", help="folder below results/telesto")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    chosen = parser.parse_args(arguments)
    options = TelestoOptions(
        only=[name.strip() for name in chosen.only.split(",") if name.strip()],
        seconds=chosen.seconds,
        repeats_max=chosen.repeats_max,
        stability_seconds=chosen.stability_seconds,
        hours=chosen.hours,
        results=chosen.results,
        name=chosen.name,
        quick=chosen.quick,
    )
    try:
        options.experiments()
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    report = run_telesto(options, lambda line: print(line, file=sys.stderr, flush=True))
    if chosen.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        render(report, Console())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
