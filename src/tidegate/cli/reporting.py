"""The command `tidegate report`: learned results as one HTML page and a PDF."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.exit_codes import NOTHING_THERE, NotWritten
from tidegate.cli.learning import AgreementOption, DataOption, warn, with_spark
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    out: Annotated[Path, typer.Option("--out", help="The page.")] = Path("report.html"),
    pdf: Annotated[bool, typer.Option("--pdf", help="Make a PDF beside it, too.")] = False,
    queues: Annotated[
        int, typer.Option(min=1, max=1000, help="Queues to draw, the busiest first.")
    ] = 8,
    data: DataOption = None,
    knowledge: Annotated[
        Path | None,
        typer.Option("--knowledge", help="What was learned. [default: from the settings]"),
    ] = None,
    agreement: AgreementOption = None,
    show: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write a page of learned results: service levels, waits, stability, models and a forecast.

    The exit code is 3 if nothing was learned yet.

    Example: `tidegate report --out report.html --pdf`
    """
    output = Output(json)
    settings = load_settings(config, os.environ).with_data(data)
    folder = knowledge or settings.knowledge_folder
    places = agreement or settings.pipeline.agreement_places
    pdf_file = _beside(out) if pdf else None
    for place in (out, pdf_file):
        if place is not None and place.is_dir():
            raise NotWritten(f"{place} is a folder: name a file, such as {place / 'report.html'}")
    with with_spark():
        from tidegate.agreement.document import read_agreements
        from tidegate.report.learned import Learned, NothingLearned
        from tidegate.report.report import document_of, write_report

        try:
            learned = Learned(folder)
            document = document_of(learned, queues, read_agreements(places))
            write_report(document, out, pdf_file)
        except NothingLearned as nothing:
            warn(str(nothing))
            raise typer.Exit(NOTHING_THERE) from None
        except OSError as error:
            raise NotWritten(
                f"{_asked_for(error, out)} cannot be written: {error.strerror or error}"
            ) from None
    for complaint in learned.complaints:
        warn(complaint)
    files = [str(file) for file in (out, pdf_file) if file is not None]
    if json:
        output.json({"files": files, "run": learned.run.run, "complaints": learned.complaints})
    else:
        for written in files:
            output.line(written)
    if show:
        typer.launch(out.absolute().as_uri())


def _beside(page: Path) -> Path:
    """Return the path of the PDF for a page."""
    if page.is_dir():
        return page
    if page.suffix.lower() == ".pdf":
        raise typer.BadParameter(
            f"{page} would be both the page and its PDF: name the page, such as "
            f"{page.with_suffix('.html')}, and the PDF comes beside it",
            param_hint="--out",
        )
    return page.with_suffix(".pdf")


def _asked_for(error: OSError, out: Path) -> str:
    """Return the path that could not be written; for a partial file, the path it would get."""
    if error.filename is None:
        return str(out)
    failed = Path(error.filename)
    if failed.name.startswith(".") and failed.suffix == ".partial":
        return str(failed.with_name(failed.stem.removeprefix(".")))
    return str(failed)
