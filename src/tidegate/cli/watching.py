"""The command `tidegate watch`: agreements and anomalies as they are recorded, by the pipeline."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.asking import duration_option, some_duration_s
from tidegate.cli.learning import (
    AgreementOption,
    DataOption,
    KnowledgeOption,
    LakeOption,
    spark_options,
    warn,
    with_spark,
)
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.watch_view import Standing

if TYPE_CHECKING:
    from tidegate.pipeline.watching.watch import Watch, WatchOptions

_REFRESH_S = 1.0


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there, to its end, and stop.")
    ] = False,
    since: Annotated[
        float,
        duration_option("How far back the first start begins. [default: 1h]"),
    ] = 3600.0,
    delay: Annotated[
        float,
        duration_option(
            "How much older than the newest a row may be and still count. [default: 60s]"
        ),
    ] = 60.0,
    every: Annotated[
        float,
        duration_option("How often to look. [default: 5s]", some_duration_s),
    ] = 5.0,
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Forget what was watched before, and begin anew.")
    ] = False,
    data: DataOption = None,
    lake: LakeOption = None,
    knowledge: KnowledgeOption = None,
    agreement: AgreementOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Watch agreements and anomalies as nodes record them, until Ctrl-C. Needs tidegate[spark].

    Example: `tidegate watch --once --since 6h --agreement agreements/`
    """
    output = Output(json)
    settings = load_settings(config, os.environ).with_data(data)
    with with_spark():
        from tidegate.agreement.document import read_agreements
        from tidegate.pipeline.session import spark_session
        from tidegate.pipeline.survey import Place, check_there
        from tidegate.pipeline.watching.watch import WatchOptions, held, start_afresh, started
        from tidegate.telemetry.knowledge import Knowledge

        places = agreement or settings.pipeline.agreement_places
        store = Knowledge(knowledge or settings.knowledge_folder)
        options = WatchOptions(
            lake=lake or settings.lake,
            folder=store.folder / "watch",
            agreements=read_agreements(places) if places else [],
            since_s=time.time() - since,
            delay_s=delay,
            every_s=every,
        )
        # Report all refusals before Spark starts, which takes several seconds.
        check_there(Place.of(options.lake))
        store.check_writable()
        if not places:
            warn("no agreement is named (--agreement, or [pipeline] agreements): anomalies only")
        if afresh:
            start_afresh(options.folder)
        standing = Standing.of(options.folder)
        teller = _Teller(output, standing)
        with (
            held(options) as continued,
            spark_session(spark_options(settings)) as spark,
            _told_to_stop() as stop,
            started(spark, continued, teller.found) as watched,
        ):
            if once:
                watched.run_once(stop)
            else:
                _watch_on(watched, output, standing, stop)
        if once and stop.is_set():
            raise KeyboardInterrupt
        if once:
            _summary(output, standing, watched, options)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Let Ctrl-C set a flag in this context, because an interrupted call to Java is unsafe."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Teller:
    """Adds the results of batches to the status, and prints changes outside a terminal."""

    def __init__(self, output: Output, standing: Standing) -> None:
        self._output = output
        self._standing = standing

    def found(self, query: str, tables: Mapping[str, Any]) -> None:
        for name, table in tables.items():
            for row in table.to_pylist():
                line = self._standing.take(name, row)
                if self._output.as_json:
                    self._output.json({"table": name, **row}, one_line=True)
                elif line is not None and not self._output.on_terminal:
                    self._output.line(line)


def _watch_on(watched: Watch, output: Output, standing: Standing, stop: threading.Event) -> None:
    """Watch until `stop` is set; results are stored, and an unfinished batch repeats next time."""
    watched.start()
    if not output.on_terminal:
        while not stop.wait(_REFRESH_S):
            watched.check()
        return
    from rich.live import Live

    with Live(console=output.console, screen=True, auto_refresh=False) as live:
        while not stop.wait(_REFRESH_S):
            watched.check()
            live.update(standing.screen(watched.readings(), output.console.width), refresh=True)


def _summary(output: Output, standing: Standing, watched: Watch, options: WatchOptions) -> None:
    readings = watched.readings()
    if output.as_json:
        output.json({"reading": readings, "folder": str(options.folder)}, one_line=True)
        return
    for title, columns, rows in standing.tables(readings):
        output.table(columns, rows, title=title)
        output.line("")
    output.line(str(options.folder))
