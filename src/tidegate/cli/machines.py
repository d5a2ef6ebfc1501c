"""The commands `tidegate machine` (one machine as a process tree) and `tidegate fleet`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask
from tidegate.cli.logs import set_up_logs
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.serving import checked_join
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import store_of
from tidegate.core.errors import InvalidValue, TidegateError

if TYPE_CHECKING:
    from tidegate.core.fleet import FleetInfo

_COLUMNS = [
    Column("machine", right=True, style="bold"),
    Column("state"),
    Column("slots", right=True),
    Column("holds"),
    Column("host", spare=True),
    Column("node"),
    Column("provider", spare=True),
    Column("detail"),
]
# The limit for a machine's detail on a terminal.
_DETAIL_SHOWN = 160
_BOOT_S_MAX = 86_400.0


def register(app: typer.Typer) -> None:
    app.command("machine")(machine)
    app.command("fleet")(fleet)


def machine(
    machine_id: Annotated[int, typer.Option("--id", min=1, help="Which machine this is.")],
    join: Annotated[
        str | None, typer.Option(help="URL of the PostgreSQL that is the store")
    ] = None,
    join_file: Annotated[
        Path | None, typer.Option(help="A file with that URL: for one with a password.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="Replicas that it takes.")] = 1,
    boot_s: Annotated[
        float,
        typer.Option(
            min=0.0, max=_BOOT_S_MAX, help="Wait so long first, as a cloud's machine would."
        ),
    ] = 0.0,
    config: ConfigOption = None,
) -> None:
    """Run one machine of a fleet: a node, and workers for the replicas assigned to it.

    The provider of the fleet runs this command on a machine that it boots. Use --join-file for a
    store URL with a password.
    """
    settings = load_settings(config, os.environ)
    # The logs of all processes of this machine contain its id.
    os.environ["TIDEGATE_MACHINE"] = str(machine_id)
    set_up_logs(settings.log.level, settings.log.format)
    try:
        if math.isnan(boot_s):
            raise InvalidValue("--boot-s is a number of seconds")
        urls = checked_join(join, settings) if join_file is None else _urls_in(join_file)
        asyncio.run(_run_machine(machine_id, slots, boot_s, urls, settings, config))
    except TidegateError as failure:
        _say_last(str(failure))
        raise


def _urls_in(join_file: Path) -> list[str]:
    try:
        urls = join_file.read_text().split()
    except OSError as failure:
        raise InvalidValue(f"{join_file} cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidValue(f"{join_file} is no text: it is to hold the URL of the store") from None
    if not urls:
        raise InvalidValue(f"{join_file} is empty: it is to hold the URL of the store")
    return urls


async def _run_machine(
    machine_id: int,
    slots: int,
    boot_s: float,
    urls: Sequence[str],
    settings: Settings,
    config: Path | None,
) -> None:
    import logging

    from tidegate.fleet.machine import MachineOptions, MachineSupervisor
    from tidegate.fleet.node_process import NodeProcess

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), boot_s)
        return
    store = store_of(urls)
    await store.open()
    node = NodeProcess(urls, 0, config, metrics_port=0, lake=settings.lake, machine_id=machine_id)
    options = MachineOptions(
        slots=slots,
        drain_s=settings.fleet.drain_s,
        host=settings.node.host,
        advertise=settings.node.advertise,
        data=settings.store.data_folder,
    )
    try:
        why = await MachineSupervisor(machine_id, store, node, options).run(stop)
    finally:
        await store.close()
    logging.getLogger(__name__).info("machine ends: %s", why, extra={"machine": machine_id})
    _say_last(why)


def _say_last(words: str) -> None:
    """Write the reason of the exit to the file that the provider reads."""
    from tidegate.fleet.providers.process import LAST_WORDS_VARIABLE

    if (path := os.environ.get(LAST_WORDS_VARIABLE)) is not None:
        # A full disk must not change how the machine ends.
        with contextlib.suppress(OSError):
            Path(path).write_text(words)


def fleet(url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Show the machines of the fleet: states, slots, warm machines, the leader and failures."""
    output = Output(json)
    found: FleetInfo = ask(url, lambda mq: mq.fleet())
    if json:
        output.json(found)
        return
    lead = "nobody leads" if found.leader is None else f"node {found.leader} leads"
    running = [one for one in found.machines if one.state in ("up", "warm")]
    slots = sum(one.slots for one in running)
    used = sum(len(found.held_by(one.machine_id)) for one in running)
    parts = [
        f"{lead} (epoch {found.epoch})",
        f"{len(running)} machines run, {found.warm} of them warm",
        f"{used} of {slots} slots used",
    ]
    if found.instances_waiting:
        parts.append(f"{found.instances_waiting} instances wait for a slot")
    hosts = {one.host for one in running if one.host is not None}
    if hosts:
        parts.append(f"on {len(hosts)} hosts")
    if failed := sum(one.state == "failed" for one in found.machines):
        parts.append(f"{failed} failed")
    output.line("; ".join(parts))
    rows: list[list[Cell]] = [
        [
            one.machine_id,
            one.state,
            f"{len(found.held_by(one.machine_id))}/{one.slots}",
            ", ".join(found.held_by(one.machine_id)) or None,
            one.host,
            one.address if one.alive else None,
            one.provider,
            (one.detail[:_DETAIL_SHOWN] if output.on_terminal else one.detail) or None,
        ]
        for one in found.machines
    ]
    if rows:
        output.table(_COLUMNS, rows)
