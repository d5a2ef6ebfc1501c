"""`tidegate up` and `tidegate node`: processes that serve until they are told to stop.

`up` holds the store and watches over its nodes, each a process of its own (`tidegate node`):
a store or a node that dies is started again. A node knows its parent and ends with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from tidegate.cli.logs import set_up_logs
from tidegate.cli.settings import METRICS_PORT_OFFSET, Settings, load_settings
from tidegate.client.address import SCHEME, SCHEME_TLS
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.secrecy import without_secrets

if TYPE_CHECKING:
    from tidegate.node.http_door import HttpDoor
    from tidegate.node.limits import Limits
    from tidegate.node.server import Node
    from tidegate.node.tls import NodeTls
    from tidegate.storage.embedded import EmbeddedPostgres
    from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_READY = "TIDEGATE_READY_FD"
_PARENT = "TIDEGATE_PARENT_PID"
_START_S = 15.0
_WATCH_S = 0.2
_PR_SET_PDEATHSIG = 1

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file; default: tidegate.toml if there is one")
]


MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="port of /metrics, 0 for a free one [default: 1000 above the node's]",
    ),
]


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
    config: ConfigOption = None,
) -> None:
    """Start a store and nodes, print their addresses, serve until SIGTERM or Ctrl-C."""
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
        while not stop():
            house.watch()
            time.sleep(_WATCH_S)
    finally:
        house.stop()


class House:
    """A store and the nodes on it."""

    def __init__(
        self,
        settings: Settings,
        data: Path,
        store_port: int | None = None,
        log_file: IO[bytes] | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._store_port = store_port
        self._log_file = log_file
        self._embedded: EmbeddedPostgres | None = None
        self._nodes: list[NodeProcess] = []

    @property
    def _lake(self) -> str:
        """Where the nodes record: with the data that they are told of, and not in their folder."""
        return self._settings.telemetry.lake or str(self._data.expanduser().resolve() / "lake")

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self._nodes]

    @property
    def metrics_addresses(self) -> list[str]:
        return [node.metrics_address for node in self._nodes if node.metrics_address]

    @property
    def how_to_join(self) -> str | None:
        """A command for other nodes of this machine; the password is read, never shown."""
        if self._embedded is None or self._store_port is None:
            return None
        password = self._data.expanduser().resolve() / "password"
        url = f"postgresql://tidegate:$(cat {password})@127.0.0.1:{self._store_port}/tidegate"
        # By the environment: a command line is read by everybody on the machine.
        return f'TIDEGATE_STORE__URL="{url}" tidegate node --port 0'

    def start(
        self,
        nodes: int,
        first_port: int,
        config: Path | None,
        first_metrics_port: int | None = None,
    ) -> None:
        """Start everything; everything serves when this returns."""
        urls = self._settings.store.all_urls
        if urls:
            url = urls[0]
        else:
            from tidegate.storage.embedded import EmbeddedPostgres

            self._embedded = EmbeddedPostgres(self._data, port=self._store_port)
            url = self._embedded.start()
        for index in range(nodes):
            port = first_port + index if first_port else 0
            metrics_port = first_metrics_port + index if first_metrics_port else first_metrics_port
            self._nodes.append(
                NodeProcess(url, port, config, self._log_file, metrics_port, self._lake)
            )
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_ready()

    def watch(self) -> None:
        """Start again what has died."""
        try:
            if self._embedded is not None and self._embedded.ensure_running():
                log.error("PostgreSQL had died and was started again")
        except TidegateError as failure:
            # It died again while it recovered. We are here to try again, not to give up.
            log.error("PostgreSQL did not come back yet: %s", failure)
            return
        for node in self._nodes:
            node.ensure_running()

    def stop(self) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()
        if self._embedded is not None:
            self._embedded.stop()


class NodeProcess:
    """A node in a process of its own."""

    def __init__(
        self,
        store_url: str,
        port: int,
        config: Path | None,
        log_file: IO[bytes] | None = None,
        metrics_port: int | None = None,
        lake: str | None = None,
    ) -> None:
        self._store_url = store_url
        self._lake = lake
        self._port = port
        self._metrics_port = metrics_port
        self._config = config
        # Where its log lines go; None is our stderr.
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_fd = -1
        self._started_at = 0.0
        self.address = ""
        self.metrics_address = ""

    def start(self) -> None:
        ready_fd, child_fd = os.pipe()
        command = [sys.executable, "-m", "tidegate", "node", "--port", str(self._port)]
        if self._metrics_port is not None:
            command += ["--metrics-port", str(self._metrics_port)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        # The URL may hold a password: it goes by the environment, not by the command line.
        environment = os.environ | {
            "TIDEGATE_STORE__URL": self._store_url,
            _READY: str(child_fd),
            _PARENT: str(os.getpid()),
        }
        environment.pop("TIDEGATE_STORE__URLS", None)
        if self._lake is not None:
            environment["TIDEGATE_TELEMETRY__LAKE"] = self._lake
        # A group of its own: Ctrl-C is for us, and we tell the nodes in order.
        self._process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=(child_fd,),
            start_new_session=True,
            stderr=self._log_file,
        )
        os.close(child_fd)
        self._ready_fd = ready_fd
        self._started_at = time.monotonic()

    def wait_until_ready(self) -> None:
        """Its addresses come through a pipe when it serves, or else why it does not."""
        assert self._process is not None
        with os.fdopen(self._ready_fd, "rb") as ready:
            readable, _, _ = select.select([ready], [], [], _START_S)
            line = ready.readline().decode().strip() if readable else ""
        if not line.startswith((SCHEME, SCHEME_TLS)):
            self._process.kill()
            code = self._process.wait()
            raise Unavailable(line or f"a node did not start (exit code {code}): its log says why")
        self.address, _, self.metrics_address = line.partition(" ")
        # When it has to be started again, it must be found where it was.
        self._port = int(self.address.rpartition(":")[2])
        if self.metrics_address:
            self._metrics_port = int(self.metrics_address.rpartition(":")[2])

    def ensure_running(self) -> None:
        assert self._process is not None
        if self._process.poll() is None or time.monotonic() - self._started_at < 1.0:
            return
        log.error(
            "a node died and is started again",
            extra={"address": self.address, "code": self._process.returncode},
        )
        self.start()
        try:
            self.wait_until_ready()
        except Unavailable as failure:
            log.error("%s", failure)

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            log.error("a node did not stop and is killed", extra={"address": self.address})
            self._process.kill()
            self._process.wait()


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
    config: ConfigOption = None,
) -> None:
    """Run one node on a store that exists; it joins the others there."""
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    if join and without_secrets(join) != join:
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            "TIDEGATE_STORE__URL instead of --join"
        )
    urls = [join] if join else settings.store.all_urls
    if not urls:
        raise Unavailable("which store? give --join URL, or set store.url")
    _end_with_parent()
    import uvloop

    # Segments and spans die by reference count; looking for cycles among them is lost time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

    ready = ReadyPipe()
    try:
        uvloop.run(
            _serve(
                urls[0],
                settings,
                settings.node.host if host is None else host,
                settings.node.port if port is None else port,
                name,
                metrics_port,
                ready,
            )
        )
    except TidegateError as failure:
        if not ready.tell(str(failure)):
            raise
        raise typer.Exit(1) from None


class ReadyPipe:
    """Whom to tell how the start went: `up` when it started us, nobody otherwise."""

    def __init__(self) -> None:
        descriptor = os.environ.get(_READY)
        self._descriptor = None if descriptor is None else int(descriptor)

    def tell(self, text: str) -> bool:
        """Say it once; False when nobody listens, or no longer."""
        if self._descriptor is None:
            return False
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(" ".join(text.split()) + "\n")
        self._descriptor = None
        return True


async def _serve(
    url: str,
    settings: Settings,
    host: str,
    port: int,
    name: str | None,
    metrics_port: int | None,
    ready: ReadyPipe,
) -> None:
    from tidegate.node.server import Node
    from tidegate.storage.postgres import PostgresStore

    limits = limits_of(settings)
    store = PostgresStore(url, writers=settings.store.connections or limits.writers)
    advertise = settings.node.advertise
    node = Node(
        store,
        host=host,
        port=port,
        advertise=advertise,
        name=name,
        limits=limits,
        tls=tls_of(settings),
        login_always=settings.node.login == "always",
        recorder=recorder_of(settings),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await node.start()
    door = None
    try:
        if settings.metrics.enabled:
            door = await _opened_door(node, port, metrics_port, settings)
        if not ready.tell(f"{node.address} {node.metrics_address}"):
            if node.metrics_address:
                print(f"metrics: {node.metrics_address}/metrics", file=sys.stderr)
            print(node.address, flush=True)
        await stop.wait()
    finally:
        await node.stop()
        # Last: whoever asks while the node drains is to hear just that.
        if door is not None:
            await door.stop()


async def _opened_door(
    node: Node, node_port: int, metrics_port: int | None, settings: Settings
) -> HttpDoor:
    """The door to /metrics: on the port that was asked for, or on one that we choose."""
    from tidegate.node.http_door import HttpDoor

    chosen = settings.metrics
    asked = chosen.port if metrics_port is None else metrics_port
    derived = node_port + METRICS_PORT_OFFSET
    # Nodes that were given any free port have neighbours that were, too.
    ports = [asked] if asked is not None else [derived, 0] if node_port and derived < 2**16 else [0]
    while True:
        port = ports.pop(0)
        door = HttpDoor(node, host=chosen.host, port=port, queues_max=chosen.queues_max)
        try:
            await door.start()
            return door
        except Unavailable as failure:
            # Nobody asked for this one, so nobody is stopped by it.
            if not ports:
                raise
            log.warning("%s; on a free port then", failure)


def tls_of(settings: Settings) -> NodeTls | None:
    from tidegate.node.tls import NodeTls

    chosen = settings.tls
    if chosen.certificate is None or chosen.key is None:
        return None
    authority = None if chosen.authority is None else Path(chosen.authority).expanduser()
    return NodeTls(Path(chosen.certificate).expanduser(), Path(chosen.key).expanduser(), authority)


def recorder_of(settings: Settings) -> Recorder | None:
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    chosen = settings.telemetry
    if not chosen.enabled:
        return None
    return Recorder(
        RecorderOptions(
            lake=settings.lake,
            interval_s=chosen.interval_s,
            flush_s=chosen.flush_s,
            retention_s=chosen.retention_s,
            requests_per_s=chosen.requests_per_s,
            lifecycles_per_s=chosen.lifecycles_per_s,
        )
    )


def limits_of(settings: Settings) -> Limits:
    from tidegate.node.limits import Limits

    chosen = settings.node
    return Limits(
        memory_bytes=chosen.memory_bytes_max,
        message_bytes_max=chosen.message_bytes_max,
        frame_before_login_bytes=chosen.frame_before_login_bytes_max,
        connections_max=chosen.connections_max,
        connections_per_address_max=chosen.connections_per_address_max,
        connections_per_user_max=chosen.connections_per_user_max,
        slow_reader_s=chosen.slow_reader_s,
        handshake_s=chosen.handshake_s,
        heartbeat_s=chosen.heartbeat_s,
        lease_s=chosen.lease_s,
        delivery_lease_s=chosen.delivery_lease_s,
        writers=chosen.writers,
        settle_linger_s=chosen.settle_linger_s,
    )


def _stop_requested() -> Callable[[], bool]:
    """A function that tells whether a signal asked us to stop."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked.append(received))
    return lambda: bool(asked)


def _end_with_parent() -> None:
    """When `up` is killed without a chance to tell us, the kernel does."""
    parent = os.environ.get(_PARENT)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise TidegateError("the process that started this node is gone")
