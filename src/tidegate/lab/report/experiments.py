"""A run of several experiments that ends in one page.

Strategy: experiments run one after another, each on fresh servers, and each leaves a JSON file and
its PNGs; at the end one page shows all that were run, and says first what was missed. An experiment
that fails is reported as failed and the others go on.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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

RESULTS = Path("results")
Progress = Callable[[str], None]
# Makes its drawings in the folder.
Experiment = Callable[[Path, Progress], Section]


class ExperimentFailed(RuntimeError):
    """An experiment cannot come to its end; the sentence says what was missing."""


_FAILURES = (ChildFailed, ServerFailed, ExperimentFailed)


class ExperimentsReport(msgspec.Struct, frozen=True):
    """What all experiments found, and where it is."""

    folder: Path
    title: str
    theirs: str
    sections: list[Section]
    failed: dict[str, str]
    environment: dict[str, str]
    seconds: float = 0.0

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
            "seconds": self.seconds,
            "met": self.met,
        }


def chosen_from(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """The chosen ones in order, or a sentence about a name that is none."""
    for name in only:
        if name not in names:
            raise ValueError(f"no experiment is called {name!r}; there are: {', '.join(names)}")
    return [name for name in names if not only or name in only]


def run_experiments(
    experiments: Mapping[str, Experiment],
    *,
    folder: Path,
    title: str,
    theirs: str,
    introduction: str,
    progress: Progress,
) -> ExperimentsReport:
    """Run them in order, and write what they found."""
    began, began_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    make_folder(folder)
    sections: list[Section] = []
    failed: dict[str, str] = {}
    for name, experiment in experiments.items():
        progress(f"{name} …")
        try:
            section = experiment(folder, progress)
        except _FAILURES as failure:
            failed[name] = str(failure)
            progress(f"{name} FAILED: {failure}")
            continue
        write_json(section.as_json(), folder / f"{name}.json")
        sections.append(section)
    report = ExperimentsReport(
        folder, title, theirs, sections, failed, describe_machine(), time.monotonic() - began_s
    )
    write_json(report.as_json(), folder / "report.json")
    write_page(
        Page(
            title=title,
            theirs=theirs,
            introduction=introduction,
            sections=sections,
            environment=report.environment,
            when=began.strftime("%Y-%m-%d %H:%M UTC"),
            failed=failed,
        ),
        folder,
    )
    return report


def folder_of(results: Path, experiment: str, name: str | None) -> Path:
    """Where a run leaves what it found: under its name, or under its time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return results / experiment / (name or stamp)


def make_folder(folder: Path) -> None:
    """Make it and write into it once: nobody measures for an hour to learn that nothing is kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ExperimentFailed(
            f"{folder}: no results can be written there: {error.strerror}; name another folder "
            "with --results"
        ) from None


def render(report: ExperimentsReport, console: Console) -> None:
    """Print what was found, in words and verdicts."""
    table = Table(title=report.title, show_lines=True)
    for column in ("experiment", report.theirs, "Tidegate"):
        table.add_column(column)
    for section in report.sections:
        theirs = f"{section.theirs}: " if section.theirs else ""
        table.add_row(section.title, theirs + section.paper, section.ours)
    console.print(table)
    if report.bars:
        console.print(bar_table(report.bars))
    for name, why in report.failed.items():
        console.print(f"{name} failed: {why}", style="red", markup=False)
    console.print(f"{report.page}", markup=False)
