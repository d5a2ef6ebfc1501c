"""The commands `tidegate bench …`: throughput and latency on this machine, and comparisons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.learn import requiring_spark
from tidegate.cli.options import DEFAULT, UrlOption
from tidegate.cli.output import (
    Column,
    JsonOption,
    MeasurementFailed,
    Output,
    QuickOption,
    names_in,
    print_progress,
    print_report,
    run_measurement,
    terminated_like_interrupted,
    with_options,
)
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.services import Engine
from tidegate.core.text import parse_size_bytes

if TYPE_CHECKING:
    from rich.console import Console


RoundsOption = Annotated[int | None, typer.Option(min=1, help="Number of rounds.")]
SecondsOption = Annotated[float | None, typer.Option(min=0.1, help="Length of one run in seconds.")]


class LabMissing(TidegateError):
    """A package that only measurements need is not installed."""

    name = "LAB_MISSING"


@contextlib.contextmanager
def requiring_lab() -> Iterator[None]:
    """Report missing packages and failed measurements in this context as Tidegate errors."""
    try:
        with terminated_like_interrupted():
            yield
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.startswith("tidegate"):
            raise
        raise LabMissing(f"this needs the package {missing.name}: run `make setup`") from None
    except (RuntimeError, AssertionError) as failure:
        # Errors of the lab's own servers and child processes are expected failures. Any other error
        # is a bug, and needs its traceback.
        if not type(failure).__module__.startswith("tidegate_lab"):
            raise
        raise MeasurementFailed(str(failure)) from None


bench = typer.Typer(no_args_is_help=True, help="Run benchmarks.")


def register_bench(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.command("run")
def run_load_command(
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Rate of all producers together in messages a second. [default: no limit]"
        ),
    ] = None,
    producers: Annotated[
        int, typer.Option(min=1, max=64, help="Number of producer processes.")
    ] = 1,
    consumers: Annotated[
        int, typer.Option(min=0, max=64, help="Number of consumer processes.")
    ] = 1,
    prefetch: Annotated[int, typer.Option(min=1, help="Prefetch of each consumer.")] = 2000,
    size: Annotated[str, typer.Option(help="Size of a message, such as 256 or 4KiB.")] = "256",
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for which the producers put messages, in seconds.")
    ] = 10.0,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Maximum number of unconfirmed puts of a producer.")
    ] = 1000,
    transient: Annotated[
        bool,
        typer.Option(
            "--transient", help="Use a transient queue, which keeps messages in memory only."
        ),
    ] = False,
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
    with requiring_lab():
        from tidegate_lab.loadgen import load

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
        report = load.run_load(options, print_progress)
    print_report(report, load.render, as_json=json, good=True)
    if report.lost:
        raise TidegateError(f"{report.lost} confirmed messages were lost")


@bench.command("compare")
def bench_compare(
    only: Annotated[str, typer.Option(help="Systems to measure, separated by commas.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    messages: Annotated[
        int | None,
        typer.Option(min=1, help="Number of messages of one run, instead of a calibrated number."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Wanted length of one run in seconds.")
    ] = 4.0,
    latency: Annotated[
        bool, typer.Option(help="Also measure latencies, or do not measure them.")
    ] = True,
    latency_seconds: Annotated[
        float, typer.Option(min=0.5, help="Length of the latency measurement in seconds.")
    ] = 10.0,
    json: JsonOption = False,
) -> None:
    """Compare Tidegate with RabbitMQ, Redis and NATS, each started on this machine.

    Example: `tidegate bench compare --only tidegate,rabbitmq`
    """
    with requiring_lab():
        from tidegate_lab.bench import compare, compare_report

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
        report = compare.run_compare(options, print_progress)
    print_report(report, compare_report.render, as_json=json, good=not report.failed)


@bench.command("backlog")
def bench_backlog(
    waiting: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Number of waiting messages; may be repeated. [default: 1 and 5 million]"
        ),
    ] = None,
    rounds: RoundsOption = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput and memory with millions of waiting messages, and with an empty queue."""
    with requiring_lab():
        from tidegate_lab.bench import backlog

        report = run_measurement(
            backlog.run_backlog,
            backlog.BacklogOptions,
            quick=quick,
            backlogs=waiting,
            rounds=rounds,
            seconds_per_run=seconds,
        )
    print_report(report, backlog.render_backlog, as_json=json, good=report.met or quick)


@bench.command("clients")
def bench_clients(
    count: Annotated[
        list[int] | None,
        typer.Option(min=9, help="Number of clients; may be repeated. [default: 9, 90 and 270]"),
    ] = None,
    rounds: RoundsOption = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput with a growing number of clients of Telesto's client mix."""
    with requiring_lab():
        from tidegate_lab.bench import queue

        report = run_measurement(
            queue.run_clients,
            queue.ClientsOptions,
            quick=quick,
            counts=count,
            rounds=rounds,
            seconds=seconds,
        )
    print_report(report, queue.render_clients, as_json=json, good=report.met or quick)


@bench.command("recording")
def bench_recording(
    pairs: Annotated[
        int | None,
        typer.Option(
            min=10, help="Number of pairs of runs, with and without recording. [default: 30]"
        ),
    ] = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the cost of recording telemetry, in alternating pairs of runs with and without it."""
    with requiring_lab():
        from tidegate_lab.bench import queue

        report = run_measurement(
            queue.run_recording,
            queue.RecordingOptions,
            quick=quick,
            pairs=pairs,
            seconds_per_run=seconds,
        )
    print_report(report, queue.render_recording, as_json=json, good=report.met or quick)


@bench.command("control")
def bench_control(
    replicas: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Number of replicas; may be repeated. [default: 125 to 2000]"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of control steps for each number of replicas.")
    ] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the time of one control step as the number of replicas grows."""
    with requiring_lab():
        from tidegate_lab.bench import control

        report = run_measurement(
            control.run_control,
            control.ControlOptions,
            quick=quick,
            replicas=replicas,
            steps=steps,
        )
    print_report(report, control.render_control, as_json=json, good=report.met or quick)


@bench.command("alias")
def bench_alias(
    pairs: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Number of pairs of runs, through a logical queue and a plain one. [default: 30]",
        ),
    ] = None,
    seconds: SecondsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure throughput through a logical queue and a plain one, in alternating pairs of runs."""
    with requiring_lab():
        from tidegate_lab.bench import queue

        report = run_measurement(
            queue.run_alias,
            queue.AliasOptions,
            quick=quick,
            pairs=pairs,
            seconds_per_run=seconds,
        )
    print_report(report, queue.render_alias, as_json=json, good=report.met or quick)


@bench.command("pipeline")
def bench_pipeline(
    rows: Annotated[
        str | None,
        typer.Option(help="Numbers of telemetry rows, separated by commas. [default: 1M,10M,50M]"),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(
            help="Jobs to measure, separated by commas. [default: "
            "identification,compliance,lifecycle]"
        ),
    ] = "",
    rounds: RoundsOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Measure how many rows of telemetry Spark processes per second. Needs tidegate[spark]."""
    with requiring_lab():
        from tidegate_lab.bench import compare as processors  # noqa: F401  says what is missing of the lab
    with requiring_lab(), requiring_spark():
        from tidegate_lab.bench import pipeline

        try:
            wanted = pipeline.parse_rows(rows) if rows else None
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong), param_hint="--rows") from None
        report = run_measurement(
            pipeline.run_pipeline,
            pipeline.PipelineOptions,
            quick=quick,
            rows=wanted,
            jobs=names_in(jobs) or None,
            rounds=rounds,
        )
    print_report(report, pipeline.render, as_json=json, good=report.met or quick)


# The commands `tidegate lab run kills` and `storm`: injected faults, and the checker's result.


EXPERIMENTS = {
    "kills": "node and PostgreSQL killed at random moments under load; nothing confirmed is lost",
    "storm": "a queue scaled up and down under load while its machines, workers and leader are "
    "killed; nothing confirmed is lost",
}
SeedOption = Annotated[int | None, typer.Option(help="Seed of the random moments.")]
RateOption = Annotated[float, typer.Option(min=1.0, help="Rate of each producer in puts a second.")]


def register_faults(run: typer.Typer) -> None:
    run.command("kills", help=f"Run {EXPERIMENTS['kills']}.")(kills)
    run.command("storm", help=f"Run {EXPERIMENTS['storm']}.")(storm)


def kills(
    count: Annotated[int, typer.Option("--kills", min=1, help="Number of kills.")] = 200,
    what: Annotated[str, typer.Option(help="What to kill: node, postgres or both.")] = "both",
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Number of node processes.")] = 1,
    rate: RateOption = 400.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.faults import kills as kills_run

        if what not in kills_run.MIXTURES:
            raise typer.BadParameter(f"what is one of {', '.join(sorted(kills_run.MIXTURES))}")
        options = kills_run.KillOptions(
            kills=count, what=what, nodes=nodes, rate_per_s=rate, seed=seed
        )
        report = kills_run.run_kills(options, print_progress)
    print_report(_Judged(report), _render_kills, as_json=json, good=report.passed)


def storm(
    events: Annotated[int, typer.Option(min=1, help="Number of orders to scale the queue.")] = 100,
    stores: Annotated[int, typer.Option(min=1, max=8, help="Number of PostgreSQL servers.")] = 1,
    kill_store: Annotated[bool, typer.Option("--kill-store", help="Also kill PostgreSQL.")] = False,
    rate: RateOption = 150.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.faults import scale_storm

        options = scale_storm.StormOptions(
            events=events, stores=stores, kill_store=kill_store, rate_per_s=rate, seed=seed
        )
        report = scale_storm.run_storm(options, print_progress)
    print_report(_Judged(report), _render_storm, as_json=json, good=report.passed)


class _Judged:
    """Adapts a report with a check result to `print_report`."""

    def __init__(self, report: Any) -> None:
        self.report = report

    def as_json(self) -> Any:
        import msgspec

        return msgspec.to_builtins(self.report)


def _render_kills(judged: _Judged, console: Console) -> None:
    report = judged.report
    console.print(
        f"{_counted(report.kills)} of {report.kills_wanted} in {report.duration_s:.0f} s "
        f"(seed {report.seed})"
    )
    left = "nobody knows what is" if report.left_in_store is None else report.left_in_store
    console.print(
        f"confirming again after {report.recovery_s_median:.2f} s (median), "
        f"{report.recovery_s_max:.2f} s at most; {left} left in the store"
    )
    _render_verdict(report, console)


def _render_storm(judged: _Judged, console: Console) -> None:
    report = judged.report
    console.print(
        f"{report.ups} times more and {report.downs} times fewer replicas, killed "
        f"{_counted(report.kills) or 'nobody'}, in {report.duration_s:.0f} s (seed {report.seed})"
    )
    console.print(
        f"{report.carried_out} of {report.waited_for} orders that were waited for carried out, the "
        f"slowest after {report.slowest_s:.1f} s; {report.left_in_store} left in the store"
    )
    _render_verdict(report, console)


def _counted(kills: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kills.items()))


def _render_verdict(report: Any, console: Console) -> None:
    console.print(str(report.verdict), markup=False)
    for failure in report.client_failures:
        console.print(str(failure), markup=False)


# The commands `tidegate lab …`: experiments of the papers; `faults` adds fault injection.


lab = typer.Typer(no_args_is_help=True, help="List and run experiments.")
run = typer.Typer(no_args_is_help=True, help="Run one experiment.")
lab.add_typer(run, name="run")

OnlyOption = Annotated[
    str, typer.Option(help="Run only these parts of the experiment, separated by commas.")
]
ResultsOption = Annotated[
    Path | None, typer.Option(help="Folder for the results. [default: results]")
]
NameOption = Annotated[
    str | None,
    typer.Option(
        help="Name of this run's folder below the experiment's folder. [default: the time]"
    ),
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
    **EXPERIMENTS,
}


def register_lab(app: typer.Typer) -> None:
    # After the experiments of the papers, in every list.
    register_faults(run)
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
        float | None, typer.Option(min=0.1, help="Length of each window of a sweep in seconds.")
    ] = None,
    stability_seconds: Annotated[
        float | None, typer.Option(min=1.0, help="Length of the long run in seconds.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0.01, help="Length of the long run in hours; the report's run took 2."),
    ] = None,
    repeats_max: Annotated[
        int | None,
        typer.Option(
            min=2, help="Maximum number of windows, even if the confidence interval is wide."
        ),
    ] = None,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.papers.telesto import run as telesto_run

        options = with_options(
            telesto_run.TelestoOptions(only=names_in(only), quick=quick),
            seconds=seconds,
            stability_seconds=stability_seconds,
            hours=hours,
            repeats_max=repeats_max,
            results=results,
            name=name,
        )
        check_chosen(options)
        report = telesto_run.run_telesto(options, print_progress)
    print_report(report, telesto_run.render, as_json=json, good=not report.failed)


@run.command("replicated-queues", help=f"Run {_EXPERIMENTS['replicated-queues']}.")
def replicated_queues(
    only: OnlyOption = "",
    full: Annotated[
        bool,
        typer.Option("--full", help="Use the paper's own numbers; this takes most of an hour."),
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Use the paper's own numbers in virtual time.")
    ] = False,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.papers.replicated import run as replicated_run

        options = with_options(
            replicated_run.ReplicatedOptions(
                only=names_in(only), full=full, quick=quick, simulate=simulate
            ),
            results=results,
            name=name,
        )
        check_chosen(options)
        report = replicated_run.run_replicated(options, print_progress)
    print_report(report, replicated_run.render, as_json=json, good=not report.failed)


@run.command("elastic-queues", help=f"Run {_EXPERIMENTS['elastic-queues']}.")
def elastic_queues(
    simulated: Annotated[
        bool, typer.Option("--simulate", help="Use the paper's own numbers in virtual time.")
    ] = False,
    only: OnlyOption = "",
    traces: Annotated[
        int | None, typer.Option(min=20, help="Number of simulated traces. [default: 500]")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of the simulated traces for the comparison. [default: 30000]"
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Run real processes with a slower clock; this takes long."),
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
    with requiring_lab():
        from tidegate_lab.papers.elastic import run as elastic_run
        from tidegate_lab.papers.elastic import simulated as simulated_run

        options: Any = (
            simulated_run.SimulatedOptions(only=names_in(only), quick=quick)
            if simulated
            else elastic_run.ElasticOptions(only=names_in(only), full=full, quick=quick)
        )
        options = with_options(options, results=results, name=name)
        if simulated:
            options = with_options(options, traces=traces, seed=seed)
        check_chosen(options)
        make = simulated_run.run_simulated if simulated else elastic_run.run_elastic
        report = make(options, print_progress)
    print_report(report, simulated_run.render, as_json=json, good=not report.failed)


@run.command("prefetch-control", help=f"Run {_EXPERIMENTS['prefetch-control']}.")
def prefetch_control(
    engine: Annotated[
        str, typer.Option(help="The broker to use: rabbitmq or tidegate.")
    ] = "rabbitmq",
    only: OnlyOption = "",
    full: Annotated[
        bool, typer.Option("--full", help="Use the paper's own numbers; this takes hours.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Run in virtual time; this takes half a minute.")
    ] = False,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.papers.prefetch import run as prefetch_run
        from tidegate_lab.papers.prefetch.plan import BrokerKind

        if engine not in list(BrokerKind):
            raise typer.BadParameter(f"an engine is one of {', '.join(BrokerKind)}")
        options = with_options(
            prefetch_run.PrefetchOptions(
                engine=BrokerKind(engine),
                only=names_in(only),
                full=full,
                quick=quick,
                simulate=simulate,
            ),
            results=results,
            name=name,
        )
        check_chosen(options)
        report = prefetch_run.run_prefetch(options, print_progress)
    print_report(report, prefetch_run.render, as_json=json, good=not report.failed)


@run.command("tapas", help=f"Run {_EXPERIMENTS['tapas']}.")
def tapas(
    only: OnlyOption = "",
    pairs: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Number of pairs of runs with plain HAProxy and with Tidegate. [default: 12]",
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Door in front of the instances for which the agreement is kept.")
    ] = Engine.GATEWAY,
    results: ResultsOption = None,
    name: NameOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    with requiring_lab():
        from tidegate_lab.papers.tapas import run as tapas_run

        options = with_options(
            tapas_run.TapasOptions(only=names_in(only), quick=quick, engine=engine),
            pairs=pairs,
            results=results,
            name=name,
        )
        check_chosen(options)
        report = tapas_run.run_tapas(options, print_progress)
    print_report(report, tapas_run.render, as_json=json, good=not report.failed)
