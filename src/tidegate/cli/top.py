"""The command `tidegate top`: an overview of all services in a terminal, until Ctrl-C.

A node provides live stats, and the store provides the status of agreements. If the connection is
lost, the screen keeps the last data with a notice, and the client reconnects.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, check_is_node, duration_option, some_duration_s
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import StoreDataOption, StoreOption, running_stores
from tidegate.core.errors import Unavailable
from tidegate.core.harmless import harmless

if TYPE_CHECKING:
    from tidegate.cli.glance import Glance

Show = Callable[["Glance"], None]


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    every: Annotated[
        float,
        duration_option("How often to look: 1s or longer. [default: 1s]", some_duration_s),
    ] = 1.0,
    url: UrlOption = DEFAULT,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every service with its agreement, rates and replicas; urgent ones come first.

    Agreements and HTTP services are read from the store, and all other data from a node.
    """
    check_is_node(url)
    output = Output(json)
    stores, note = stores_of(store, data, load_settings(config, os.environ))
    asyncio.run(_look(output, url, stores, note, None if once else every))


def stores_of(store: str | None, data: Path | None, settings: Settings) -> tuple[list[str], str]:
    """Return the stores with agreements, or none with a note if no store was named."""
    try:
        return running_stores(store, data, settings), ""
    except Unavailable:
        # A user who watches a node on another computer may have no access to its store.
        if store or data:
            raise
        return [], "agreements are not shown: name the store with --store URL or --data FOLDER"


async def _look(
    output: Output, url: str, stores: list[str], note: str, every_s: float | None
) -> None:
    if every_s is None or not output.on_terminal:
        await watched(url, stores, every_s, _printed(output, note))
        return
    from rich.live import Live

    from tidegate.cli.glance_view import screen

    with Live(console=output.console, screen=True, auto_refresh=False) as live:

        def draw(glance: Glance) -> None:
            size = output.console.size
            live.update(screen(glance, size.width, size.height, note), refresh=True)

        await watched(url, stores, every_s, draw)


async def watched(url: str, stores: list[str], every_s: float | None, show: Show) -> None:
    """Poll and show the overview, once if `every_s` is None, else for ever."""
    from tidegate.cli.glance import lookout

    # A first connection that fails is a wrong address and raises; a later failure is an outage.
    async with lookout(url, stores) as looking:
        while True:
            began = time.monotonic()
            show(await looking.look())
            if every_s is None:
                return
            await asyncio.sleep(max(every_s - (time.monotonic() - began), 0.0))


def _printed(output: Output, note: str) -> Show:
    """Return a function that prints one overview to a pipe, or once to a terminal."""
    from tidegate.cli import glance_view

    was_lost = False

    def show(glance: Glance) -> None:
        nonlocal was_lost
        if output.as_json:
            document = glance_view.as_json(glance)
            output.json(document | ({"note": note} if note else {}), one_line=True)
        elif output.on_terminal:
            size = output.console.size
            output.console.print(glance_view.screen(glance, size.width, 10_000, note))
        elif not glance.lost:
            _print(output, glance, note)
        if bool(glance.lost) != was_lost and not output.as_json:
            # Print the loss of the connection and its return once each, not every second.
            word = "connected again"
            if glance.lost:
                word = f"connection lost: {harmless(glance.lost)}"
            print(f"tidegate: {word}", file=sys.stderr, flush=True)
        was_lost = bool(glance.lost)

    return show


def _print(output: Output, glance: Glance, note: str) -> None:
    from tidegate.cli import glance_view

    attention = glance.overview.attention
    output.line(f"attention\t{'-' if attention is None else harmless(attention.text)}")
    for complaint in filter(None, (*glance.overview.complaints, note)):
        output.line(f"note\t{harmless(complaint)}")
    output.table(
        glance_view.COLUMNS,
        [glance_view.cells(row, glance.prefetch.get(row.name)) for row in glance.rows],
    )
    for decision in glance.decisions[: glance_view.DECISIONS_SHOWN]:
        output.line(f"decided\t{harmless(glance_view.decided(decision))}")
