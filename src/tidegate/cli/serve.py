"""The commands `tidegate up` and `tidegate node`, which serve until SIGTERM or Ctrl-C.

Theory of operation
-------------------

`up` is a supervisor. Its child processes are the embedded PostgreSQL (unless the settings name a
store), the nodes, and the console. It prints the nodes' addresses on stdout and everything else on
stderr. Then it checks its children five times a second, and restarts each one that died.

`node` is one broker process. It starts in this order, and prints its address last:

1. It opens the store and joins the cluster.
2. It creates the queues that the settings declare, so that clients find them from the beginning.
3. It serves /metrics, /healthz and /readyz.
4. It reports its address to its parent through a pipe, or prints it.
5. It runs the control loops until a signal comes.

It stops in the reverse order: the control loops end, the node drains and leaves, and the metrics
server ends last, so that /readyz reports the drain.

Failures:

- A node process dies: `up` restarts it on the same port. The other nodes take over its queues
  meanwhile.
- PostgreSQL dies: `up` restarts it, and the nodes reconnect.
- `up` is killed: the kernel sends a signal to each child, which then shuts down.
- A port is in use: a port chosen by the user is an error. A derived port falls back to a free one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.exit_codes import exit_code_of
from tidegate.cli.house import House
from tidegate.cli.listening import check_free
from tidegate.cli.logs import set_up_logs
from tidegate.cli.node_wiring import limits_of, recorder_of, tls_of
from tidegate.cli.settings.metrics import METRICS_PORT_OFFSET
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.cli.settings_options import ConfigOption, MetricsPortOption
from tidegate.cli.steering_wiring import declare_goals, declare_queues, steered
from tidegate.cli.store_wiring import store_of
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.secrecy import without_secrets
from tidegate.fleet.parent import end_with_parent
from tidegate.fleet.ready_pipe import ReadyPipe

if TYPE_CHECKING:
    from tidegate.node.http_door import HttpDoor
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

_WATCH_S = 0.2


def register(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("node")(node)


def up(
    data: Annotated[
        Path | None, typer.Option(help="folder of the embedded PostgreSQL [default: tidegate-data]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="port of the first node, 0 for a free one [default: 7411]"
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="how many node processes")] = 1,
    store_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="let nodes join over TCP on this port of the embedded PostgreSQL"
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    with_console: Annotated[
        bool | None, typer.Option("--console/--no-console", help="serve the console, or not")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Start a store and nodes, print their addresses, and serve until SIGTERM or Ctrl-C.

    Without a store in the settings, an embedded PostgreSQL keeps its data in --data. Nodes use
    consecutive ports. A node or store that dies is restarted.

    Example: `tidegate up --nodes 2 --data /var/lib/tidegate`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    first_port = settings.node.port if port is None else port
    if metrics_port is None:
        metrics_port = settings.metrics.port
    house = House(settings, data or settings.store.data_folder, store_port)
    stop = _stop_requested()
    try:
        house.start(nodes, first_port, config, metrics_port)
        for address in house.metrics_addresses:
            print(f"metrics: {address}/metrics", file=sys.stderr)
        for address in house.addresses:
            print(address, flush=True)
        if (how := house.how_to_join) is not None:
            print(f"join with: {how}", file=sys.stderr)
        if settings.console.enabled if with_console is None else with_console:
            house.start_console(first_port, config)
        while not stop():
            if (console_at := house.watch()) is not None:
                print(f"console: {console_at}", file=sys.stderr)
            time.sleep(_WATCH_S)
    finally:
        house.stop()


def node(
    join: Annotated[
        str | None, typer.Option(help="URL of the PostgreSQL that is the store")
    ] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="port, 0 for a free one")
    ] = None,
    name: Annotated[str | None, typer.Option(help="how the node is called in lists")] = None,
    metrics_port: MetricsPortOption = None,
    machine: Annotated[
        int | None, typer.Option(min=1, help="the machine of the fleet that it is on")
    ] = None,
    declare: Annotated[
        bool, typer.Option(help="make the queues of the settings that are not there")
    ] = True,
    or_free: Annotated[bool, typer.Option("--or-free", hidden=True)] = False,
    config: ConfigOption = None,
) -> None:
    """Run one node on an existing store; it joins the other nodes there.

    The store is --join, or `store.url` of the settings.

    Example: `TIDEGATE_STORE__URL=postgresql://... tidegate node --port 0`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    urls = checked_join(join, settings)
    end_with_parent()
    import uvloop

    # Reference counting frees segments and spans. Searching for cycles among them only costs time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

    ready = ReadyPipe()
    try:
        uvloop.run(
            _serve(
                urls,
                settings,
                settings.node.host if host is None else host,
                settings.node.port if port is None else port,
                name,
                metrics_port,
                ready,
                machine,
                config,
                declare,
                or_free,
            )
        )
    except TidegateError as failure:
        if not ready.tell(str(failure)):
            raise
        raise typer.Exit(exit_code_of(failure)) from None


def checked_join(join: str | None, settings: Settings) -> list[str]:
    """Return the URLs of the stores from --join or the settings; raise `InvalidValue` if none."""
    if join and without_secrets(join) != join:
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            "TIDEGATE_STORE__URL instead of --join"
        )
    urls = [join] if join else settings.store.all_urls
    if not urls:
        raise InvalidValue("which store? give --join URL, or set store.url")
    return urls


async def _serve(
    urls: list[str],
    settings: Settings,
    host: str,
    port: int,
    name: str | None,
    metrics_port: int | None,
    ready: ReadyPipe,
    machine_id: int | None,
    config: Path | None,
    declare: bool,
    or_free: bool,
) -> None:
    from tidegate.node.server import Node

    limits = limits_of(settings)
    store = store_of(urls, settings.store.connections or limits.writers)
    advertise = settings.node.advertise
    node = Node(
        store,
        host=host,
        port=port,
        or_free=or_free,
        advertise=advertise,
        name=name,
        limits=limits,
        tls=tls_of(settings),
        login_always=settings.node.login == "always",
        recorder=recorder_of(settings),
        machine_id=machine_id,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not or_free:
        check_free(host, port)
    await node.start()
    if node.address.rpartition(":")[2] != str(port):
        # The node fell back to another port. The ports derived from the first one may be in use,
        # too.
        port = 0
    door = None
    try:
        if declare:
            # Before the node reports ready, so that clients find the queues. Goals come first,
            # because the creation of a queue sets its policy.
            await declare_goals(store, settings.prefetch_goals)
            await declare_queues(store, settings.queues)
        if settings.metrics.enabled:
            door = await _opened_door(node, port, metrics_port, settings)
        if not ready.tell(f"{node.address} {node.metrics_address}"):
            if node.metrics_address:
                print(f"metrics: {node.metrics_address}/metrics", file=sys.stderr)
            print(node.address, flush=True)
        async with steered(node, settings, urls, config):
            await stop.wait()
    finally:
        await node.stop()
        # Last, so that /readyz reports the drain while it lasts.
        if door is not None:
            await door.stop()


async def _opened_door(
    node: Node, node_port: int, metrics_port: int | None, settings: Settings
) -> HttpDoor:
    """Start the server of /metrics, on the requested port or on a derived one."""
    from tidegate.node.http_door import HttpDoor

    chosen = settings.metrics
    asked = chosen.port if metrics_port is None else metrics_port
    derived = node_port + METRICS_PORT_OFFSET
    # A node on a free port has a free port for its metrics, too: derived ports could collide.
    ports = [asked] if asked is not None else [derived, 0] if node_port and derived < 2**16 else [0]
    while True:
        port = ports.pop(0)
        door = HttpDoor(node, host=chosen.host, port=port, queues_max=chosen.queues_max)
        try:
            await door.start()
            return door
        except Unavailable as failure:
            # The user did not choose this port, so a free one serves as well.
            if not ports:
                raise
            log.warning("%s; on a free port then", failure)


def _stop_requested() -> Callable[[], bool]:
    """Return a function that reports whether SIGTERM or SIGINT was received."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked.append(received))
    return lambda: bool(asked)
