"""`tidegate lab …`: experiments of the papers, and faults made on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.measuring import QuickOption, changed, names_in, say, show, with_the_lab
from tidegate.cli.output import Column, JsonOption, Output

if TYPE_CHECKING:
    from rich.console import Console

lab = typer.Typer(no_args_is_help=True, help="Experiments.")
run = typer.Typer(no_args_is_help=True, help="Run one.")
lab.add_typer(run, name="run")

_EXPERIMENTS = {
    "telesto": "the experiments of the Telesto report: its client mix, figures and tables",
    "kills": "node and PostgreSQL killed at random moments under load; nothing confirmed is lost",
}


def register(app: typer.Typer) -> None:
    app.add_typer(lab, name="lab")


@lab.command("list")
def list_experiments(json: JsonOption = False) -> None:
    """List what there is to run."""
    output = Output(json)
    if json:
        output.json(_EXPERIMENTS)
    else:
        columns = [Column("experiment", style="bold"), Column("what it does")]
        output.table(columns, [list(entry) for entry in _EXPERIMENTS.items()])


@run.command("telesto", help=f"Run {_EXPERIMENTS['telesto']}.")
def telesto(
    only: Annotated[str, typer.Option(help="Parts of it, separated by commas.")] = "",
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Length of each window of a sweep.")
    ] = None,
    stability_seconds: Annotated[
        float | None, typer.Option(min=1.0, help="Length of the long run.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.01, help="The same in hours; the report's took 2.")
    ] = None,
    repeats_max: Annotated[
        int | None, typer.Option(min=2, help="Windows at most, however wide the interval.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Folder [default: results].")] = None,
    name: Annotated[
        str | None, typer.Option(help="Folder below results/telesto [default: the time].")
    ] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.telesto import run as telesto_run

        options = changed(
            telesto_run.TelestoOptions(only=names_in(only), quick=quick),
            seconds=seconds,
            stability_seconds=stability_seconds,
            hours=hours,
            repeats_max=repeats_max,
            results=results,
            name=name,
        )
        try:
            options.experiments()
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong)) from None
        report = telesto_run.run_telesto(options, say)
    show(report, telesto_run.render, as_json=json, good=not report.failed)


@run.command("kills", help=f"Run {_EXPERIMENTS['kills']}.")
def kills(
    count: Annotated[int, typer.Option("--kills", min=1, help="How many.")] = 200,
    what: Annotated[str, typer.Option(help="node, postgres or both.")] = "both",
    nodes: Annotated[int, typer.Option(min=1, max=8, help="How many node processes.")] = 1,
    rate: Annotated[float, typer.Option(min=1.0, help="Puts a second of a producer.")] = 400.0,
    seed: Annotated[int | None, typer.Option(help="Of the random moments.")] = None,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.faults import kills as kills_run

        if what not in kills_run.MIXTURES:
            raise typer.BadParameter(f"what is one of {', '.join(sorted(kills_run.MIXTURES))}")
        options = kills_run.KillOptions(
            kills=count, what=what, nodes=nodes, rate_per_s=rate, seed=seed
        )
        report = kills_run.run_kills(options, say)
    show(_Kills(report), _render_kills, as_json=json, good=report.passed)


class _Kills:
    """The report of a kills run, as `show` takes reports."""

    def __init__(self, report: Any) -> None:
        self.report = report

    def as_json(self) -> Any:
        import msgspec

        return msgspec.Raw(self.report.as_json().encode())


def _render_kills(kills: _Kills, console: Console) -> None:
    report = kills.report
    killed = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kills.items()))
    console.print(f"{killed} in {report.duration_s:.0f} s (seed {report.seed})")
    console.print(
        f"confirming again after {report.recovery_s_median:.2f} s (median), "
        f"{report.recovery_s_max:.2f} s at most; {report.left_in_store} left in the store"
    )
    console.print(str(report.verdict), markup=False)
    for failure in report.client_failures:
        console.print(str(failure), markup=False)
