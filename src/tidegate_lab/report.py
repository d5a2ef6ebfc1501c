"""Reports of experiments: figures as PNG, and one HTML page that contains everything."""

from __future__ import annotations

import base64
import datetime
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate.report.charts import ReportTable
from tidegate.report.page import render as render_page
from tidegate_lab.bench.compare import describe_machine
from tidegate_lab.bench.compare_report import Bar, bar_table
from tidegate_lab.loadgen.processes import ChildFailed
from tidegate_lab.peers.servers import ServerFailed

# The parts of a report: what one experiment asked, measured and drew.


class Drawing(msgspec.Struct, frozen=True):
    """A PNG file and its caption."""

    file: str
    caption: str


class ExperimentSection(msgspec.Struct, frozen=True):
    """The results of one experiment."""

    name: str
    title: str
    # Where the paper shows the experiment, and what it reports.
    source: str
    paper: str
    ours: str
    # The heading of the paper's column, if it is not the system of the paper.
    theirs: str | None = None
    drawings: Sequence[Drawing] = ()
    tables: Sequence[ReportTable] = ()
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    # All measurements, as plain JSON values.
    data: dict[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
            bar["verdict"] = struct.verdict
        return plain


def write_json(value: object, file: Path) -> None:
    """Write a JSON file with indentation, so that people can read it."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


# Run several experiments and write one page about them.
#
# Theory of operation
#
# An experiment is a function that receives a folder and returns an `ExperimentSection`. It starts
# its own servers, measures something on them, and draws its figures into the folder. A section
# compares the values that a paper printed with the values measured here. Its *bars* are the values
# that Tidegate must reach.
#
# `run_experiments` runs experiments one after another, because they share the machine's cores.
# After
# each it writes `<name>.json`. At the end it writes `report.json` and a page, `index.html`, which
# begins with the bars that were missed. An experiment that fails is reported as failed, and the
# next
# one runs. The run counts as met if no experiment failed and every bar was met.


RESULTS = Path("results")
Progress = Callable[[str], None]
# An experiment writes its drawings into the folder.
Experiment = Callable[[Path, Progress], ExperimentSection]


class ExperimentFailed(RuntimeError):
    """An experiment could not be completed; the message says what was missing."""


_FAILURES = (ChildFailed, ServerFailed, ExperimentFailed)


class ExperimentsReport(msgspec.Struct, frozen=True):
    """The results of a run of experiments.

    `theirs` is the name of the system that the paper describes.
    """

    folder: Path
    title: str
    theirs: str
    sections: list[ExperimentSection]
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
        """Return the report as plain JSON values."""
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
    """Return the chosen names in their order; all if `only` is empty.

    Raise `ValueError` if `only` contains an unknown name.
    """
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
    """Run experiments in order, and write their results and the page to `folder`."""
    began, began_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    make_folder(folder)
    sections: list[ExperimentSection] = []
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
    """Return the folder of a run, named by `name` or, if that is `None`, by the current time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return results / experiment / (name or stamp)


def make_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before hours of measurements begin."""
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
    """Print the results and the verdicts on the bars."""
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


# The HTML page of a run (`templates/experiments.html.j2`): figures are embedded, nothing is loaded,
# and there is no script.


class Page(msgspec.Struct, frozen=True):
    """The contents of a page about several experiments."""

    title: str
    # The name of the system that the paper describes.
    theirs: str
    introduction: str
    sections: Sequence[ExperimentSection]
    environment: Mapping[str, str]
    when: str
    # Experiments that were not completed, with the reason.
    failed: Mapping[str, str] = {}


def write_page(page: Page, folder: Path, name: str = "index.html") -> Path:
    """Write the page; drawings are read from the same folder and embedded."""

    def image_of(drawing: Drawing) -> str:
        return base64.b64encode((folder / drawing.file).read_bytes()).decode()

    file = folder / name
    text = render_page(
        "experiments.html.j2",
        ["tidegate_lab"],
        page=page,
        missed=_missed(page),
        bars=[bar for section in page.sections for bar in section.bars],
        found=_found,
        wanted=_wanted,
        image_of=image_of,
    )
    file.write_text(text, encoding="utf-8")
    return file


def _missed(page: Page) -> list[str]:
    """Return the bars that were missed or not measured: the reader has to know these first."""
    lines = [f"{name} did not come to its end: {why}" for name, why in page.failed.items()]
    for section in page.sections:
        for bar in section.bars:
            if bar.met is False:
                found = _found(bar) if bar.distinguishable else f"{_found(bar)}, {bar.verdict}"
                lines.append(f"{section.title}: {bar.bar}: {found}, wanted {_wanted(bar)}")
            elif bar.met is None:
                lines.append(f"{section.title}: {bar.bar}: not measured")
    return lines


def _wanted(bar: Bar) -> str:
    return "–" if bar.limit is None else f"{bar.sign} {bar.limit:.4g} {bar.unit}"


def _found(bar: Bar) -> str:
    if bar.figure is None:
        return "–"
    half = "" if bar.half_width is None else f" ± {bar.half_width:.4g}"
    return f"{bar.figure:.4g}{half} {bar.unit}"
