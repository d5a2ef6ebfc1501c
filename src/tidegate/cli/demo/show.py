"""The demo itself: start, watch, drain, count, clean up.

Everything lives in a temporary folder and in processes that end with this one: the nodes through
the same machinery as `tidegate up`, the crew because its stdin ends.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from tidegate.cli.interruption import terminated_like_interrupted, undisturbed
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.serving import House
from tidegate.cli.settings import Settings
from tidegate.core.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from tidegate.cli.demo.recent import Moment, Recent
    from tidegate.cli.demo.script import Turn
    from tidegate.cli.demo.summary import Summary
    from tidegate.client.client import Client

_REFRESH_S = 0.5
_DRAIN_S_MAX = 30.0
_LOG_TAIL_BYTES = 3000
_LIFECYCLES_PER_S = 1000


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    seconds: Annotated[
        float, typer.Option(min=2.0, max=3600.0, help="How long producers work.")
    ] = 20.0,
    nodes: Annotated[int, typer.Option(min=1, max=8, help="How many node processes.")] = 1,
    learn: Annotated[
        bool, typer.Option(help="Let Spark learn from it afterwards; needs tidegate[spark].")
    ] = True,
    report: Annotated[Path, typer.Option(help="The page that shows what was learned.")] = Path(
        "tidegate-demo.html"
    ),
    json: JsonOption = False,
) -> None:
    """Start everything in a temporary folder, let it work, count it all, learn from it."""
    output = Output(json)
    # In pipes lines are for people who wait; with --json stdout holds the JSON only.
    told = sys.stderr if json else sys.stdout
    with terminated_like_interrupted(), _temporary_folder() as folder:
        log_path = folder / "demo.log"
        with log_path.open("ab") as log_file:
            try:
                summary = _perform(seconds, nodes, folder, log_file, output, told)
            except TidegateError:
                sys.stderr.write(log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace"))
                raise
        from tidegate.cli.demo.summary import show

        if not json:
            show(summary, output)
        page = _teach(folder / "data", report.resolve(), output) if learn else None
    if json:
        output.json(summary.as_json() | {"report": page and str(page)})
    if not summary.good:
        raise typer.Exit(1)


def _teach(data: Path, page: Path, output: Output) -> Path | None:
    """Where what was learned can be read; whoever has no Spark has seen the rest."""
    from tidegate.cli.demo.lessons import teach
    from tidegate.cli.learning import SparkMissing, show_run, warn

    if not output.as_json:
        output.line("")
        output.line("Spark learns from the telemetry of it …", style="dim")
    try:
        run = teach(data / "lake", data / "knowledge", page, output)
    except SparkMissing as missing:
        warn(f"nothing was learned from it: {missing}")
        return None
    if not output.as_json:
        show_run(run, output)
        output.line(f"The report: {page}", style="bold green")
    return page


def _perform(
    seconds: float, nodes: int, folder: Path, log_file: IO[bytes], output: Output, told: IO[str]
) -> Summary:
    logging.basicConfig(filename=folder / "demo.log", level=logging.INFO)
    # A file of its own, so that no tidegate.toml of the present folder has a say.
    config = folder / "tidegate.toml"
    # So short a time needs many of its messages looked at, for percentiles that mean something.
    config.write_text(f"[telemetry]\nlifecycles_per_s = {_LIFECYCLES_PER_S}\n")
    begun = time.monotonic()
    house = House(Settings(), folder / "data", log_file=log_file)
    try:
        # Not in a thread: nodes end with the thread that started them.
        house.start(nodes, 0, config)
        ready_s = time.monotonic() - begun
        stage = _Stage(house, seconds, ready_s, output, told)
        return asyncio.run(stage.play(log_file))
    finally:
        with undisturbed():
            house.stop()


class _Stage:
    """The running demo."""

    def __init__(
        self, house: House, seconds: float, ready_s: float, output: Output, told: IO[str]
    ) -> None:
        self._house = house
        self._url = "tidegate://" + ",".join(
            address.removeprefix("tidegate://") for address in house.addresses
        )
        self._seconds = seconds
        self._output = output
        self._told = told
        nodes = "1 node" if len(house.addresses) == 1 else f"{len(house.addresses)} nodes"
        self._turns = [f"   0 s  {nodes} on PostgreSQL, up in {ready_s:.1f} s"]

    async def play(self, log_file: IO[bytes]) -> Summary:
        """Everything from the first message to the last."""
        from tidegate.cli.demo import script
        from tidegate.cli.demo.recent import Recent
        from tidegate.cli.demo.summary import summarize
        from tidegate.client.connect import connect
        from tidegate.lab.bench.load import crew_of, drained

        async with connect(self._url, mode="admin") as mq:
            for queue in script.QUEUES:
                await mq.create_queue(queue)
            async with crew_of(script.duties(self._url, self._seconds), log_file) as crew:
                recent = Recent(script.QUEUES)
                begun = time.monotonic()
                crew.go()
                watching = asyncio.create_task(self._watch(mq, recent, begun))
                turning = asyncio.create_task(self._take_turns(mq, script.TURNS, begun))
                try:
                    produced = await crew.produced()
                    await turning
                    empty = await drained(mq, script.QUEUES, _DRAIN_S_MAX)
                    seconds = time.monotonic() - begun
                    consumed = await crew.consumed()
                finally:
                    for task in (watching, turning):
                        task.cancel()
                    await asyncio.gather(watching, turning, return_exceptions=True)
        return summarize(produced, consumed, recent, seconds, empty)

    async def _take_turns(self, mq: Client, turns: tuple[Turn, ...], begun: float) -> None:
        for turn in turns:
            await asyncio.sleep(max(begun + turn.at_share * self._seconds - time.monotonic(), 0))
            self._turns.append(f"{time.monotonic() - begun:4.0f} s  {turn.told}")
            if not self._output.on_terminal:
                print(self._turns[-1].strip(), file=self._told, flush=True)
            if turn.prefetch is not None:
                queue, prefetch = turn.prefetch
                numbers = (await mq.stats(queue)).queue(queue)
                for consumer in numbers.consumers if numbers is not None else []:
                    await mq.set_consumer_prefetch(
                        queue, consumer.client_id, consumer.consumer, prefetch
                    )

    async def _watch(self, mq: Client, recent: Recent, begun: float) -> None:
        """Show how it is, twice a second; lines in a pipe every other time."""
        from tidegate.cli.demo import view

        with self._live() as live:
            readings = 0
            while True:
                self._house.watch()
                elapsed_s = time.monotonic() - begun
                moment = recent.read(elapsed_s, await mq.stats())
                if live is not None:
                    live.update(self._screen(moment, recent, elapsed_s), refresh=True)
                elif readings and readings % 2 == 0:
                    print(view.line(moment, elapsed_s), file=self._told, flush=True)
                readings += 1
                await asyncio.sleep(max(begun + readings * _REFRESH_S - time.monotonic(), 0.05))

    def _screen(self, moment: Moment, recent: Recent, elapsed_s: float) -> RenderableType:
        from tidegate.cli.demo import view

        return view.screen(
            moment,
            recent,
            elapsed_s=elapsed_s,
            seconds_all=self._seconds,
            turns=self._turns,
            width=self._output.console.width,
        )

    @contextmanager
    def _live(self) -> Iterator[Live | None]:
        if not self._output.on_terminal:
            yield None
            return
        from rich.live import Live

        with Live(
            console=self._output.console, auto_refresh=False, vertical_overflow="crop"
        ) as live:
            yield live


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    try:
        yield folder
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)
