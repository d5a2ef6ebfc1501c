"""The command `tidegate demo`: run, check, learn, report, clean up."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from tidegate.cli.command_line import FAILED, NotWritten
from tidegate.cli.output import JsonOption, Output, terminated_like_interrupted
from tidegate.core.errors import TidegateError, Unavailable

if TYPE_CHECKING:
    from tidegate.demo.evidence import DemoModels, DemoResult, DemoSummary
    from tidegate.demo.runner import DemoCluster, DemoRunner
    from tidegate.demo.scenario import DemoScenario
    from tidegate.demo.view import DemoView


_LOG_TAIL_BYTES = 3000
_BRISK = 0.5


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    brisk: Annotated[
        bool, typer.Option("--brisk", help="Run the same demo in about half the time.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the demo running after its end, until Ctrl-C.")
    ] = False,
    console: Annotated[
        bool, typer.Option(help="Serve the console during the demo; needs tidegate[console].")
    ] = True,
    learn: Annotated[
        bool,
        typer.Option(
            help="Let Spark learn from the demo's telemetry afterwards; needs tidegate[spark]."
        ),
    ] = True,
    report: Annotated[Path, typer.Option(help="Write the report page to this file.")] = Path(
        "tidegate-demo.html"
    ),
    history: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the histories of the clients in this folder."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a demo of two minutes: a burst, a killed machine, a slow worker; then check and learn.

    Everything runs in a temporary folder and is deleted afterwards, except for the report. The exit
    code is 1 if a promise was broken.

    Example: `tidegate demo --brisk --no-learn`
    """
    from tidegate.demo.runner import temporary_demo_cluster
    from tidegate.demo.scenario import demo_scenario

    output = Output(json)
    page = report.resolve() if learn else None
    _check_writable(page, history)
    told = demo_scenario(_BRISK if brisk else 1.0)
    with terminated_like_interrupted(), temporary_demo_cluster() as stage:
        try:
            good = _perform(stage, told, output, page, history, keep=keep, console=console)
        except TidegateError:
            log = stage.folder / "demo.log"
            sys.stderr.write(log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace"))
            raise
    if not good:
        raise typer.Exit(FAILED)


def _perform(
    stage: DemoCluster,
    told: DemoScenario,
    output: Output,
    page: Path | None,
    history: Path | None,
    *,
    keep: bool,
    console: bool,
) -> bool:
    from tidegate.demo import evidence as judgement
    from tidegate.demo.evidence import DemoHistories
    from tidegate.demo.runner import DemoRunner
    from tidegate.demo.view import DemoView

    # In a pipe, progress lines go to stdout. With --json they go to stderr, and stdout has only the
    # JSON.
    pipe: IO[str] = sys.stderr if output.as_json else sys.stdout
    view = DemoView(output, pipe, told.chapters)
    evidence = DemoHistories(stage.histories)
    began = time.monotonic()
    try:
        view.tell("a store, a node and a fleet of machines start in a temporary folder")
        stage.open()
        director = DemoRunner(stage, told, view, evidence, with_console=console)
        with view.showing():
            outcome = asyncio.run(_played(stage, director))
        story_s = time.monotonic() - began
        verdict = evidence.verdict(stage.store_urls)
        summary = judgement.summarize(outcome, verdict, evidence.windows(), story_s)
        learned = None
        try:
            if page is not None:
                learned = _learned(stage, outcome, page, output)
        finally:
            # Print the summary even if learning fails.
            _summary_json(summary, learned, output)
        if history is not None:
            _kept_histories(stage.histories, history)
        if keep:
            _go_on(stage, director, view)
    finally:
        stage.close()
    return summary.good


async def _played(stage: DemoCluster, director: DemoRunner) -> DemoResult:
    try:
        return await director.play()
    finally:
        await stage.dismiss()


def _go_on(stage: DemoCluster, director: DemoRunner, view: DemoView) -> None:
    """Run a calm load until Ctrl-C, so that the user can try other commands."""
    view.tell(f"it goes on until Ctrl-C: tidegate top --url {stage.url} --data {stage.data}")

    async def go_on() -> None:
        try:
            await director.run_idle()
        finally:
            await stage.dismiss()

    try:
        with view.showing():
            asyncio.run(go_on())
    except KeyboardInterrupt:
        # Ctrl-C is the normal end.
        return


def _learned(
    stage: DemoCluster, outcome: DemoResult, page: Path, output: Output
) -> DemoModels | None:
    """Return the result of learning; without Spark, print a warning and return None."""
    from tidegate.cli.learn import SparkMissing, warn
    from tidegate.demo.evidence import learn_models

    if not output.as_json:
        output.line("Spark learns from what just happened …", style="dim")
    try:
        return learn_models(stage.data, outcome, page, output)
    except SparkMissing as missing:
        warn(f"nothing was learned from it: {missing}")
        return None


def _summary_json(summary: DemoSummary, learned: DemoModels | None, output: Output) -> None:
    import msgspec

    from tidegate.demo.evidence import show

    if output.as_json:
        output.json(summary.as_json() | {"learned": msgspec.to_builtins(learned)})
        return
    show(summary, learned, output)
    if learned is not None:
        output.line("")
        output.line(f"The report: {learned.report}", style="bold green")


def _check_writable(page: Path | None, history: Path | None) -> None:
    """Check the output files before the run of two minutes."""
    if page is not None:
        _check_folder("--report", page.parent)
        if page.is_dir():
            raise NotWritten(f"--report {page} is a folder: name the page")
    if history is not None:
        _check_folder("--history", history)


def _check_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        raise NotWritten(
            f"{option}: nothing can be written in {folder}: {failure.strerror}"
        ) from None


def _kept_histories(histories: Path, folder: Path) -> None:
    import shutil

    try:
        for path in histories.glob("*.history"):
            shutil.copy(path, folder / path.name)
    except OSError as failure:
        raise Unavailable(
            f"the histories could not be kept in {folder}: {failure.strerror}"
        ) from None


# The command `tidegate demo`: a scenario of two minutes on real processes.
#
# story      the scenario: its steps, agreements and settings
# workshop   the user code of the workers, which record what they receive
# customers  the producer process, which records the confirmed puts
# stage      store, node, fleet, workers and producers in a temporary folder
# load       the rates of the producers and of the archive's workers
# moments    a snapshot of the demo, and the changes between two snapshots
# spectator  polls snapshots, prints changes, and waits for conditions
# account    the leader's totals for the agreements
# director   runs the scenario: sets the load, kills a machine, slows a worker
# outcome    the result of the run
# view       the terminal view, and plain lines for pipes
# evidence   the recorded histories, and the checker's result
# lessons    the models that Spark learns from the run, and the report page
# summary    the promises, and whether each was kept
# show       the command itself
