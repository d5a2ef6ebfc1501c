"""The commands `tidegate lab …`: experiments of the papers; `faults` adds fault injection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli import faults
from tidegate.cli.measuring import QuickOption, changed, names_in, say, show, with_the_lab
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.core.hosting import Engine

lab = typer.Typer(no_args_is_help=True, help="Experiments.")
run = typer.Typer(no_args_is_help=True, help="Run one.")
lab.add_typer(run, name="run")

OnlyOption = Annotated[str, typer.Option(help="Parts of it, separated by commas.")]
ResultsOption = Annotated[Path | None, typer.Option(help="Folder [default: results].")]
NameOption = Annotated[
    str | None, typer.Option(help="Folder of this run, below the experiment's [default: the time].")
]

_EXPERIMENTS = {
    "telesto": "the experiments of the Telesto report: its client mix, figures and tables",
    "replicated-queues": "the experiments of the replicated queues paper: one queue under few and "
    "many clients, two replicas, clients that come one by one",
    "elastic-queues": "the experiments of the elastic queues paper: machines and workers that come "
    "with a ramp, with real processes or simulated, and policies on 500 traces",
    "prefetch-control": "the experiments of the prefetch control paper, on RabbitMQ or Tidegate: "
    "open loop, model, P, PI and PID at 400 msg/s, disturbances, fixed prefetches beside it",
    "tapas": "the experiments of the TAPAS report: a bookshop under an agreement, what doors cost, "
    "agreements that are kept, servers that are slow, dead or silent",
    **faults.EXPERIMENTS,
}


def register(app: typer.Typer) -> None:
    # After the experiments of the papers, in every list.
    faults.register(run)
    app.add_typer(lab, name="lab")


def check_chosen(options: Any) -> None:
    """Raise a usage error if a requested part does not exist."""
    try:
        options.experiments()
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


@lab.command("list")
def list_experiments(json: JsonOption = False) -> None:
    """List the experiments."""
    output = Output(json)
    if json:
        output.json(_EXPERIMENTS)
    else:
        columns = [Column("experiment", style="bold"), Column("what it does")]
        output.table(columns, [list(entry) for entry in _EXPERIMENTS.items()])


@run.command("telesto", help=f"Run {_EXPERIMENTS['telesto']}.")
def telesto(
    only: OnlyOption = "",
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
    results: ResultsOption = None,
    name: NameOption = None,
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
        check_chosen(options)
        report = telesto_run.run_telesto(options, say)
    show(report, telesto_run.render, as_json=json, good=not report.failed)


@run.command("replicated-queues", help=f"Run {_EXPERIMENTS['replicated-queues']}.")
def replicated_queues(
    only: OnlyOption = "",
    full: Annotated[
        bool, typer.Option("--full", help="The paper's own numbers; takes most of an hour.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="The paper's own numbers in virtual time.")
    ] = False,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.replicated import run as replicated_run

        options = changed(
            replicated_run.ReplicatedOptions(
                only=names_in(only), full=full, quick=quick, simulate=simulate
            ),
            results=results,
            name=name,
        )
        check_chosen(options)
        report = replicated_run.run_replicated(options, say)
    show(report, replicated_run.render, as_json=json, good=not report.failed)


@run.command("elastic-queues", help=f"Run {_EXPERIMENTS['elastic-queues']}.")
def elastic_queues(
    simulated: Annotated[
        bool, typer.Option("--simulate", help="In virtual time, at the paper's own numbers.")
    ] = False,
    only: OnlyOption = "",
    traces: Annotated[
        int | None, typer.Option(min=20, help="Simulated: how many traces [default: 500].")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Simulated: of the traces to judge by [default: 30000]."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="With real processes: a slower clock; takes long.")
    ] = False,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    if simulated and full:
        raise typer.BadParameter("--full is for real processes; --simulate is always full")
    if traces is not None and not simulated:
        raise typer.BadParameter("--traces is for --simulate")
    if seed is not None and not simulated:
        raise typer.BadParameter("--seed is for --simulate")
    with with_the_lab():
        from tidegate.lab.elastic import run as elastic_run
        from tidegate.lab.elastic import simulated as simulated_run

        options: Any = (
            simulated_run.SimulatedOptions(only=names_in(only), quick=quick)
            if simulated
            else elastic_run.ElasticOptions(only=names_in(only), full=full, quick=quick)
        )
        options = changed(options, results=results, name=name)
        if simulated:
            options = changed(options, traces=traces, seed=seed)
        check_chosen(options)
        make = simulated_run.run_simulated if simulated else elastic_run.run_elastic
        report = make(options, say)
    show(report, simulated_run.render, as_json=json, good=not report.failed)


@run.command("prefetch-control", help=f"Run {_EXPERIMENTS['prefetch-control']}.")
def prefetch_control(
    engine: Annotated[str, typer.Option(help="rabbitmq or tidegate.")] = "rabbitmq",
    only: OnlyOption = "",
    full: Annotated[
        bool, typer.Option("--full", help="The paper's own numbers; takes hours.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="In virtual time; takes half a minute.")
    ] = False,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.prefetch import run as prefetch_run
        from tidegate.lab.prefetch.stage import Engine

        if engine not in list(Engine):
            raise typer.BadParameter(f"an engine is one of {', '.join(Engine)}")
        options = changed(
            prefetch_run.PrefetchOptions(
                engine=Engine(engine),
                only=names_in(only),
                full=full,
                quick=quick,
                simulate=simulate,
            ),
            results=results,
            name=name,
        )
        check_chosen(options)
        report = prefetch_run.run_prefetch(options, say)
    show(report, prefetch_run.render, as_json=json, good=not report.failed)


@run.command("tapas", help=f"Run {_EXPERIMENTS['tapas']}.")
def tapas(
    only: OnlyOption = "",
    pairs: Annotated[
        int | None, typer.Option(min=2, help="Pairs of plain HAProxy and ours [default: 12].")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Before our instances, where the agreement is kept.")
    ] = Engine.GATEWAY,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with with_the_lab():
        from tidegate.lab.tapas import run as tapas_run

        options = changed(
            tapas_run.TapasOptions(only=names_in(only), quick=quick, engine=engine),
            pairs=pairs,
            results=results,
            name=name,
        )
        check_chosen(options)
        report = tapas_run.run_tapas(options, say)
    show(report, tapas_run.render, as_json=json, good=not report.failed)
