"""The commands `tidegate bench …`: throughput and latency on this machine, and comparisons."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption
from tidegate.cli.learning import with_spark
from tidegate.cli.measuring import QuickOption, measured, names_in, say, show, with_the_lab
from tidegate.cli.output import JsonOption
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.quantities import parse_size_bytes

RoundsOption = Annotated[int | None, typer.Option(min=1, help="How often.")]
SecondsOption = Annotated[float | None, typer.Option(min=0.1, help="Length of a run.")]

bench = typer.Typer(no_args_is_help=True, help="Benchmarks.")


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.command("run")
def run(
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Messages a second in all; none: flat out.")
    ] = None,
    producers: Annotated[int, typer.Option(min=1, max=64, help="Processes that put.")] = 1,
    consumers: Annotated[int, typer.Option(min=0, max=64, help="Processes that take.")] = 1,
    prefetch: Annotated[int, typer.Option(min=1, help="Of each consumer.")] = 2000,
    size: Annotated[str, typer.Option(help="Of a message, such as 256 or 4KiB.")] = "256",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to produce.")] = 10.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Unconfirmed puts of a producer.")] = 1000,
    transient: Annotated[bool, typer.Option("--transient", help="In memory only.")] = False,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Put load on a running node, in a temporary queue, and check that no message is lost.

    Example: `tidegate bench run --rate 5000 --seconds 30`
    """
    try:
        size_bytes = parse_size_bytes(size)
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None
    with with_the_lab():
        from tidegate.lab.bench import load

        options = load.LoadOptions(
            url=url,
            rate_per_s=rate,
            producers=producers,
            consumers=consumers,
            prefetch=prefetch,
            size_bytes=size_bytes,
            seconds=seconds,
            in_flight_max=in_flight,
            durable=not transient,
        )
        report = load.run_load(options, say)
    show(report, load.render, as_json=json, good=True)
    if report.lost:
        raise TidegateError(f"{report.lost} confirmed messages were lost")


@bench.command("compare")
def compare(
    only: Annotated[str, typer.Option(help="Systems to measure, separated by commas.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    messages: Annotated[
        int | None, typer.Option(min=1, help="Messages of a run, instead of finding out.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Wanted length of a run.")] = 4.0,
    latency: Annotated[bool, typer.Option(help="Measure latencies too.")] = True,
    latency_seconds: Annotated[float, typer.Option(min=0.5, help="Length of that.")] = 10.0,
    json: JsonOption = False,
) -> None:
    """Compare Tidegate with RabbitMQ, Redis and NATS, each started on this machine.

    Example: `tidegate bench compare --only tidegate,rabbitmq`
    """
    with with_the_lab():
        from tidegate.lab.bench import compare, compare_table

        options = compare.CompareOptions(
            only=names_in(only),
            repeat=repeat,
            messages=messages,
            seconds_per_run=seconds,
            latency=latency,
            latency_seconds=latency_seconds,
        )
        try:
            options.contenders()
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong)) from None
        report = compare.run_compare(options, say)
    show(report, compare_table.render, as_json=json, good=not report.failed)


@bench.command("backlog")
def backlog(
    waiting: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Messages that wait; may be repeated. [default: 1 and 5 million]"),
    ] = None,
    rounds: RoundsOption = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput and memory with millions of waiting messages, and with an empty queue."""
    with with_the_lab():
        from tidegate.lab.bench import backlog

        report = measured(
            backlog.run_backlog,
            backlog.BacklogOptions,
            quick=quick,
            backlogs=waiting,
            rounds=rounds,
            seconds_per_run=seconds,
        )
    show(report, backlog.render, as_json=json, good=report.met or quick)


@bench.command("clients")
def clients(
    count: Annotated[
        list[int] | None,
        typer.Option(min=9, help="Clients; may be repeated. [default: 9, 90 and 270]"),
    ] = None,
    rounds: RoundsOption = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput with a growing number of clients of Telesto's client mix."""
    with with_the_lab():
        from tidegate.lab.bench import clients

        report = measured(
            clients.run_clients,
            clients.ClientsOptions,
            quick=quick,
            counts=count,
            rounds=rounds,
            seconds=seconds,
        )
    show(report, clients.render, as_json=json, good=report.met or quick)


@bench.command("recording")
def recording(
    pairs: Annotated[
        int | None, typer.Option(min=10, help="Pairs of runs, with and without. [default: 30]")
    ] = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the cost of recording telemetry, in alternating pairs of runs with and without it."""
    with with_the_lab():
        from tidegate.lab.bench import recording

        report = measured(
            recording.run_recording,
            recording.RecordingOptions,
            quick=quick,
            pairs=pairs,
            seconds_per_run=seconds,
        )
    show(report, recording.render, as_json=json, good=report.met or quick)


@bench.command("control")
def control(
    replicas: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Replicas; may be repeated. [default: 125 to 2000]"),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each.")] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the time of one control step as the number of replicas grows."""
    with with_the_lab():
        from tidegate.lab.bench import control

        report = measured(
            control.run_control,
            control.ControlOptions,
            quick=quick,
            replicas=replicas,
            steps=steps,
        )
    show(report, control.render, as_json=json, good=report.met or quick)


@bench.command("alias")
def alias(
    pairs: Annotated[
        int | None, typer.Option(min=2, help="Pairs of runs, through it and direct. [default: 30]")
    ] = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput through a logical queue and a plain one, in alternating pairs of runs."""
    with with_the_lab():
        from tidegate.lab.bench import alias

        report = measured(
            alias.run_alias,
            alias.AliasOptions,
            quick=quick,
            pairs=pairs,
            seconds_per_run=seconds,
        )
    show(report, alias.render, as_json=json, good=report.met or quick)


@bench.command("pipeline")
def pipeline(
    rows: Annotated[
        str | None, typer.Option(help="Rows of telemetry, by commas. [default: 1M,10M,50M]")
    ] = None,
    jobs: Annotated[
        str, typer.Option(help="Jobs, by commas. [default: identification,compliance,lifecycle]")
    ] = "",
    rounds: RoundsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure how many rows of telemetry Spark processes per second. Needs tidegate[spark]."""
    with with_the_lab():
        from tidegate.lab.bench import processors  # noqa: F401  says what is missing of the lab
    with with_the_lab(), with_spark():
        from tidegate.lab.bench import pipeline

        try:
            wanted = pipeline.parse_rows(rows) if rows else None
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong), param_hint="--rows") from None
        report = measured(
            pipeline.run_pipeline,
            pipeline.PipelineOptions,
            quick=quick,
            rows=wanted,
            jobs=names_in(jobs) or None,
            rounds=rounds,
        )
    show(report, pipeline.render, as_json=json, good=report.met or quick)
