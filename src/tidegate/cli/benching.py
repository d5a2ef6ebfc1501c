"""`tidegate bench …` and `tidegate lab …`: what this machine does, measured.

Progress goes to stderr, the report to stdout. What only measurements need is imported here, when
a command needs it, and a missing part of the `lab` extra is said in a sentence.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console

from tidegate.cli.asking import DEFAULT, UrlOption
from tidegate.cli.output import JsonOption, Output
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.quantities import parse_size_bytes

bench = typer.Typer(no_args_is_help=True, help="Benchmarks.")
lab = typer.Typer(no_args_is_help=True, help="Experiments of the papers.")

QuickOption = Annotated[
    bool, typer.Option("--quick", help="Show that it works; no figures to quote.")
]


class Report(Protocol):
    """What every measurement returns."""

    def as_json(self) -> dict[str, Any]: ...


class LabMissing(TidegateError):
    """A package that only measurements need is not installed."""

    name = "LAB_MISSING"


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")
    app.add_typer(lab, name="lab")


@contextlib.contextmanager
def _with_the_lab() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.startswith("tidegate."):
            raise
        raise LabMissing(
            f"this needs the package {missing.name}: pip install 'tidegate[lab]'"
        ) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(report: Report, render: Callable[[Any, Console], None], as_json: bool) -> None:
    output = Output(as_json)
    if as_json:
        output.json(report.as_json())
    else:
        render(report, output.report_console())
    if getattr(report, "failed", None):
        raise typer.Exit(1)


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
    """Put load on a running node, in a queue of its own, and count what came of it."""
    with _with_the_lab():
        from tidegate.lab.bench import load
    try:
        size_bytes = parse_size_bytes(size)
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None
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
    report = load.run_load(options, _say)
    _show(report, load.render, json)
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
    """Tidegate beside RabbitMQ, Redis and NATS, each started fresh on this machine."""
    with _with_the_lab():
        from tidegate.lab.bench import compare, compare_table

        options = compare.CompareOptions(
            only=[name.strip() for name in only.split(",") if name.strip()],
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
        report = compare.run_compare(options, _say)
    _show(report, compare_table.render, json)


@bench.command("backlog")
def backlog(
    waiting: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Messages that wait; may be repeated. [default: 1 and 5 million]"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Length of a run.")] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Throughput and memory with a million messages waiting, beside an empty queue."""
    with _with_the_lab():
        from tidegate.lab.bench import backlog

        options = _changed(
            backlog.BacklogOptions.quick() if quick else backlog.BacklogOptions(),
            backlogs=waiting,
            rounds=rounds,
            seconds_per_run=seconds,
        )
        report = backlog.run_backlog(options, _say)
    _show(report, backlog.render, json)


@bench.command("clients")
def clients(
    count: Annotated[
        list[int] | None,
        typer.Option(min=9, help="Clients; may be repeated. [default: 9, 90 and 270]"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Length of a run.")] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Throughput as clients of Telesto's mix come."""
    with _with_the_lab():
        from tidegate.lab.bench import clients

        options = _changed(
            clients.ClientsOptions.quick() if quick else clients.ClientsOptions(),
            counts=count,
            rounds=rounds,
            seconds=seconds,
        )
        report = clients.run_clients(options, _say)
    _show(report, clients.render, json)


def _changed(options: Any, **given: Any) -> Any:
    """The options with what was given on the command line."""
    import msgspec

    return msgspec.structs.replace(
        options, **{name: value for name, value in given.items() if value is not None}
    )
