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
import contextlib
import gc
import ipaddress
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.command_line import exit_code_of
from tidegate.cli.options import (
    DEFAULT,
    ConfigOption,
    MetricsPortOption,
    UrlOption,
    ask,
    check_free,
    check_is_node,
)
from tidegate.cli.output import Cell, Column, JsonOption, Output, set_up_logs
from tidegate.cli.settings import Settings, load_settings
from tidegate.cli.settings_sections import CONSOLE_PORT_OFFSET, METRICS_PORT_OFFSET
from tidegate.cli.wiring import (
    LocalCluster,
    StoreDataOption,
    StoreOption,
    build_node,
    build_store,
    build_tls,
    declare_goals,
    declare_queues,
    named_stores,
    open_store,
    running_loops,
    running_stores,
)
from tidegate.client.address import (
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    parse_address,
)
from tidegate.core.errors import InvalidValue, NotAuthenticated, TidegateError, Unavailable
from tidegate.core.text import redact_secrets
from tidegate.fleet.process import ReadyPipe, end_with_parent
from tidegate.fleet.processes import INSTALL_COMMAND, is_installed

if TYPE_CHECKING:
    from tidegate.broker.http import NodePages
    from tidegate.broker.node import Node
    from tidegate.client.address import Credentials
    from tidegate.client.client import Client
    from tidegate.console.application import ServerTls
    from tidegate.core.machines import FleetInfo


log = logging.getLogger(__name__)

_WATCH_S = 0.2


def register_serving(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("node")(node)


def up(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the embedded PostgreSQL. [default: tidegate-data]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of the first node; 0 chooses a free port. [default: 7411]"
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of node processes.")] = 1,
    store_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Let other nodes join over TCP on this port of the embedded PostgreSQL.",
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    with_console: Annotated[
        bool | None,
        typer.Option("--console/--no-console", help="Serve the console, or do not serve it."),
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
    house = LocalCluster(settings, data or settings.store.data_folder, store_port)
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
        str | None, typer.Option(help="URL of the PostgreSQL that is the store.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free port.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the node in lists.")] = None,
    metrics_port: MetricsPortOption = None,
    machine: Annotated[
        int | None, typer.Option(min=1, help="Number of the fleet's machine that runs the node.")
    ] = None,
    declare: Annotated[
        bool, typer.Option(help="Create the queues of the settings that do not exist.")
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
            _serve_node(
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
        if not ready.report(str(failure)):
            raise
        raise typer.Exit(exit_code_of(failure)) from None


def checked_join(join: str | None, settings: Settings) -> list[str]:
    """Return the URLs of the stores from --join or the settings; raise `InvalidValue` if none."""
    if join and redact_secrets(join) != join:
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            "TIDEGATE_STORE__URL instead of --join"
        )
    urls = [join] if join else settings.store.all_urls
    if not urls:
        raise InvalidValue("which store? give --join URL, or set store.url")
    return urls


async def _serve_node(
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
    node = build_node(
        settings, urls, host=host, port=port, or_free=or_free, name=name, machine_id=machine_id
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
            await declare_goals(node.store, settings.prefetch_goals)
            await declare_queues(node.store, settings.queues)
        if settings.metrics.enabled:
            door = await _opened_door(node, port, metrics_port, settings)
        if not ready.report(f"{node.address} {node.metrics_address}"):
            if node.metrics_address:
                print(f"metrics: {node.metrics_address}/metrics", file=sys.stderr)
            print(node.address, flush=True)
        async with running_loops(node, settings, urls, config):
            await stop.wait()
    finally:
        await node.stop()
        # Last, so that /readyz reports the drain while it lasts.
        if door is not None:
            await door.stop()


async def _opened_door(
    node: Node, node_port: int, metrics_port: int | None, settings: Settings
) -> NodePages:
    """Start the server of /metrics, on the requested port or on a derived one."""
    from tidegate.broker.http import NodePages

    chosen = settings.metrics
    asked = chosen.port if metrics_port is None else metrics_port
    derived = node_port + METRICS_PORT_OFFSET
    # A node on a free port has a free port for its metrics, too: derived ports could collide.
    ports = [asked] if asked is not None else [derived, 0] if node_port and derived < 2**16 else [0]
    while True:
        port = ports.pop(0)
        door = NodePages(
            node.stats, node.membership, host=chosen.host, port=port, queues_max=chosen.queues_max
        )
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


# The commands `tidegate machine` (one machine as a process tree) and `tidegate fleet`.


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


def register_machines(app: typer.Typer) -> None:
    app.command("machine")(machine)
    app.command("fleet")(fleet)


def machine(
    machine_id: Annotated[int, typer.Option("--id", min=1, help="Number of this machine.")],
    join: Annotated[
        str | None, typer.Option(help="URL of the PostgreSQL that is the store.")
    ] = None,
    join_file: Annotated[
        Path | None,
        typer.Option(
            help="File that contains the URL of the store; use it for a URL with a password."
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of replicas that fit on the machine.")
    ] = 1,
    boot_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=_BOOT_S_MAX,
            help="Wait this many seconds before starting, to simulate the boot time of a "
            "cloud machine.",
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
    from tidegate.fleet.processes import SupervisedProcess, node_spec

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), boot_s)
        return
    store = build_store(urls)
    await store.open()
    node = SupervisedProcess(
        node_spec(
            urls,
            0,
            config=config,
            metrics_port=0,
            machine_id=machine_id,
            environment={"TIDEGATE_TELEMETRY__LAKE": settings.lake},
        )
    )
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
    from tidegate.fleet.providers import EXIT_REASON_VARIABLE

    if (path := os.environ.get(EXIT_REASON_VARIABLE)) is not None:
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


# The command `tidegate console`: the web console and the management API.


def register_console(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on; 0 chooses a free port. [default: 1500 above the node's port]",
        ),
    ] = None,
    or_free: Annotated[bool, typer.Option("--or-free", hidden=True)] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with the pages that `lab` and `report` wrote. [default: results]"
        ),
    ] = None,
    url: UrlOption = DEFAULT,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the web console of running nodes until SIGTERM or Ctrl-C. Needs tidegate[console].

    A console on 127.0.0.1 needs no login. On any other address it needs TLS and users.

    Example: `tidegate console --port 9000`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    end_with_parent()
    ready = ReadyPipe()
    folder = (data or settings.store.data_folder).expanduser().resolve()
    try:
        check_is_node(url)
        if not is_installed():
            raise Unavailable(f"what the console stands on is not installed: {INSTALL_COMMAND}")
        import uvloop

        uvloop.run(
            _serve_console(
                settings,
                url,
                _stores(store, data, settings),
                host=settings.console.host if host is None else host,
                ports=_ports(port, or_free, settings, url),
                # Do not create the data folder.
                folder=folder / "console" if folder.is_dir() else None,
                knowledge=settings.with_data(data).knowledge_folder,
                results=tuple(results or [Path("results")]),
                ready=ready,
            )
        )
    except TidegateError as failure:
        if not ready.report(str(failure)):
            raise
        raise typer.Exit(exit_code_of(failure)) from None


def _stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the stores with services and agreement statuses; empty means only the nodes' data."""
    if store or data or settings.store.all_urls:
        return named_stores(store, data, settings) or running_stores(store, data, settings)
    try:
        return running_stores(None, None, settings)
    except Unavailable:
        return []


def _ports(port: int | None, or_free: bool, settings: Settings, url: str) -> list[int]:
    asked = settings.console.port if port is None else port
    if asked is not None:
        return [asked, 0] if or_free and asked else [asked]
    derived = parse_address(url).nodes[0][1] + CONSOLE_PORT_OFFSET
    # The user did not choose this port, so a free one serves as well.
    return [derived, 0] if derived < 2**16 else [0]


async def _serve_console(
    settings: Settings,
    url: str,
    stores: list[str],
    *,
    host: str,
    ports: list[int],
    folder: Path | None,
    knowledge: Path,
    results: tuple[Path, ...],
    ready: ReadyPipe,
) -> None:
    from tidegate.console.application import ConsoleOptions, console_application, listening, serving
    from tidegate.console.security import allowed_hosts, url_host

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connect = _connector(url, settings)
    is_local = _is_loopback(host)
    tls = None if is_local else _tls(settings)
    if not is_local:
        await _check_exposure(host, tls is not None, connect)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(open_store(stores)) if stores else None
        listener = None
        while listener is None:
            try:
                listener = listening(host, ports[0])
            except Unavailable:
                if len(ports) == 1:
                    raise
                ports = ports[1:]
        bound = listener.getsockname()[1]
        application = console_application(
            ConsoleOptions(
                connect=connect,
                hosts=allowed_hosts(host, bound, settings.console.names, tls=tls is not None),
                port=bound,
                tls=tls is not None,
                needs_login=not is_local,
                store=found,
                folder=folder,
                knowledge=knowledge,
                results=results,
            )
        )
        await stack.enter_async_context(serving(application, listener, tls))
        shown = url_host(host, settings.console.names)
        address = f"{'http' if tls is None else 'https'}://{shown}:{bound}"
        if not ready.report(address):
            print(address, flush=True)
        await stop.wait()


def _connector(url: str, settings: Settings) -> Callable[[Credentials | None], Client]:
    """Return a function that connects a user under their own name.

    The console's own credentials are removed from the environment, so that no user gets them.
    """
    from tidegate.client.address import verifying_context
    from tidegate.client.client import Client

    address = parse_address(url)
    if address.user is not None:
        raise InvalidValue(
            "a user in --url: people log in to the console under their own names; leave it out"
        )
    for variable in (USER_VARIABLE, PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE):
        os.environ.pop(variable, None)
    context = None
    if address.tls:
        authority = settings.tls.authority
        context = verifying_context(None if authority is None else Path(authority).expanduser())

    def connect(credentials: Credentials | None) -> Client:
        # A page polls again by itself, sooner than the default timeout.
        return Client(url, mode="admin", reconnect_s=5.0, credentials=credentials, tls=context)

    return connect


def _tls(settings: Settings) -> ServerTls | None:
    """Return the node's certificate files, or None if none are set; raise for unusable files."""
    from tidegate.console.application import ServerTls

    if build_tls(settings) is None:
        return None
    assert settings.tls.certificate is not None
    assert settings.tls.key is not None
    return ServerTls(
        Path(settings.tls.certificate).expanduser(), Path(settings.tls.key).expanduser()
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _check_exposure(
    host: str, has_tls: bool, connect: Callable[[Credentials | None], Client]
) -> None:
    """Raise `InvalidValue` if the console listens on the network without TLS or without users."""
    missing = []
    if not has_tls:
        missing.append("TLS: set tls.certificate and tls.key to PEM files")
    try:
        client = await connect(None).open()
        await client.close()
        missing.append("users: make the first with `tidegate user add NAME --admin`")
    except NotAuthenticated:
        pass
    if missing:
        raise InvalidValue(
            f"a console that listens on {host} can be reached from other machines and needs "
            f"{'; and '.join(missing)}. Or listen on 127.0.0.1"
        )
