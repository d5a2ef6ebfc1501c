"""The commands `status`, `ping` and `members`."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli import status
from tidegate.cli.asking import (
    DEFAULT,
    UrlOption,
    ask,
    duration_option,
    queue_key,
    some_duration_s,
)
from tidegate.cli.figures import count as counted
from tidegate.cli.figures import milliseconds, yes_no
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.core.errors import Unavailable

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.telemetry.numbers import ClusterNumbers

_MEMBER_COLUMNS = [
    Column("id", right=True, style="dim"),
    Column("node", style="bold"),
    Column("address"),
    Column("alive", shown=yes_no),
    Column("queues", shown=counted, right=True),
]
_RETRY_S = 0.1


def register(app: typer.Typer) -> None:
    app.command("status")(show_status)
    app.command("ping")(ping)
    app.command("members")(members)


def show_status(
    queue: Annotated[str | None, typer.Option(help="Only this queue: its name, or #id.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again.")] = False,
    every: Annotated[
        float, duration_option("How often, with --watch. [default: 1s]", some_duration_s)
    ] = 1.0,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show nodes, queues and consumers with their live rates.

    Example: `tidegate status --queue orders --watch`
    """
    output = Output(json)
    chosen = None if queue is None else queue_key(queue)

    def show(cluster: ClusterNumbers) -> None:
        if json:
            output.json(cluster, one_line=watch)
        else:
            for title, columns, rows in status.tables(cluster):
                output.table(columns, rows, title=title)

    async def look(mq: Client) -> None:
        if not watch:
            show(await mq.stats(chosen))
        elif output.on_terminal:
            await _watch_live(mq, output, chosen, max(every, _RETRY_S))
        else:
            while True:
                show(await mq.stats(chosen))
                await asyncio.sleep(max(every, _RETRY_S))

    ask(url, look)


async def _watch_live(mq: Client, output: Output, queue: str | int | None, every_s: float) -> None:
    from rich.live import Live

    with Live(console=output.console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(status.screen(await mq.stats(queue), output.console.width), refresh=True)
            await asyncio.sleep(every_s)


def ping(
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How often.")] = 1,
    wait: Annotated[
        float, duration_option("Wait so long for a node to come up. [default: not at all]")
    ] = 0.0,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Measure the round trip to a node.

    Example: `tidegate ping --wait 30s` waits for a node to start.
    """
    output = Output(json)

    async def measure(mq: Client) -> list[float]:
        return [await mq.ping() for _ in range(count)]

    deadline = time.monotonic() + wait
    while True:
        try:
            rounds_s = ask(url, measure)
            break
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)
    rounds_ms = [1e3 * one for one in rounds_s]
    if json:
        output.json({"url": url, "round_trip_ms": [round(one, 3) for one in rounds_ms]})
        return
    median = milliseconds(statistics.median(rounds_ms))
    spread = f" (median of {count}, at most {milliseconds(max(rounds_ms))})" if count > 1 else ""
    output.line(f"{url} answers in {median}{spread}")


def members(url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """List the nodes that share the store."""
    output = Output(json)
    found = ask(url, lambda mq: mq.members())
    rows: list[list[Cell]] = [
        [one.member_id, one.name, one.address, one.alive, one.queues] for one in found
    ]
    if json:
        names = ["member_id", "name", "address", "alive", "queues"]
        output.json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table(_MEMBER_COLUMNS, rows)
