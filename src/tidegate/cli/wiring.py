"""Builds stores, nodes, fleets and control loops from the settings, and runs the local cluster.

    build_store    the stores of a list of URLs
    build_node     a node with its limits, TLS and recorder
    build_fleet    the provider of machines and its limits
    build_control  the control loops of a node

Commands that only ask a store import this module. The parts of a node are therefore imported in the
functions that build them: together they take 0.1 s of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.cli.settings import Settings
from tidegate.cli.settings_sections import CONSOLE_PORT_OFFSET
from tidegate.core.errors import ChangedMeanwhile, InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, format_goal
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.text import redact_secrets
from tidegate.core.topology import Provisioning, Scaling, format_scaling_keys
from tidegate.fleet.process import become_keeper
from tidegate.fleet.processes import (
    INSTALL_COMMAND,
    SupervisedProcess,
    console_spec,
    is_installed,
    node_spec,
)

if TYPE_CHECKING:
    from tidegate.broker.node import Node, NodeTls
    from tidegate.control.alerts import Alerts
    from tidegate.control.leader import ControlLoops
    from tidegate.control.prefetch import PrefetchLoop
    from tidegate.core.machines import Provider
    from tidegate.core.store import Store
    from tidegate.fleet.fleet import Fleet, FleetOptions, LeaderStore
    from tidegate.fleet.providers import ProcessProvider
    from tidegate.storage.embedded import EmbeddedPostgres
    from tidegate.storage.postgres.store import PostgresStore
    from tidegate.telemetry.recorder import Recorder


def build_node(
    settings: Settings,
    store_urls: Sequence[str],
    *,
    host: str,
    port: int,
    or_free: bool,
    name: str | None,
    machine_id: int | None,
) -> Node:
    """Return a node on the stores, not yet started, with its limits, TLS and recorder."""
    from tidegate.broker.node import Node
    from tidegate.core.runtime import NodeLimits

    chosen = settings.node
    return Node(
        build_store(store_urls, settings.store.connections or chosen.writers),
        host=host,
        port=port,
        or_free=or_free,
        advertise=chosen.advertise,
        name=name,
        limits=NodeLimits(
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
        ),
        tls=build_tls(settings),
        login_always=chosen.login == "always",
        recorder=build_recorder(settings),
        machine_id=machine_id,
    )


def build_tls(settings: Settings) -> NodeTls | None:
    """Return the TLS of a node; None if the settings name no certificate."""
    from tidegate.broker.node import NodeTls

    chosen = settings.tls
    if chosen.certificate is None or chosen.key is None:
        return None
    authority = None if chosen.authority is None else Path(chosen.authority).expanduser()
    return NodeTls(Path(chosen.certificate).expanduser(), Path(chosen.key).expanduser(), authority)


def build_recorder(settings: Settings) -> Recorder | None:
    """Return the recorder of telemetry; None if it is switched off."""
    from tidegate.storage.postgres_server import mark_data_folder
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    chosen = settings.telemetry
    if not chosen.enabled:
        return None
    data = settings.store.data_folder
    if settings.lake == str(data / "lake"):
        # If the folder cannot be written yet, the recorder reports that.
        with contextlib.suppress(OSError):
            mark_data_folder(data)
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


# Selection of stores from options and settings, and connections to them.


Result = TypeVar("Result")

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="URL of the PostgreSQL that is the store. [default: from the settings, "
        "or the PostgreSQL that runs in --data]",
    ),
]
StoreDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Data folder of a running `tidegate host` or `up`. [default: tidegate-data]"
    ),
]


def build_store(urls: Sequence[str], writers: int = 1) -> PostgresStore:
    """Return a store for the URLs, not yet open; the first URL has the catalogue."""
    from tidegate.storage.postgres.store import PostgresStore
    from tidegate.storage.sharded import ShardedStore

    if len(urls) > 1:
        return ShardedStore(urls, writers=writers)
    return PostgresStore(urls[0], writers=writers)


def named_stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the URLs named by options or settings; empty means the embedded PostgreSQL."""
    if store and data:
        raise InvalidValue("--store and --data: one of them; a store of its own has no data folder")
    if store and redact_secrets(store) != store:
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            "TIDEGATE_STORE__URL instead of --store"
        )
    if store:
        return [store]
    return [] if data else settings.store.all_urls


def running_stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the URLs of the named stores, or of the running embedded PostgreSQL.

    Raise `Unavailable` if neither exists.
    """
    from tidegate.storage.embedded import running_url

    if named := named_stores(store, data, settings):
        return named
    folder = data or settings.store.data_folder
    found = running_url(folder)
    if found is None:
        raise Unavailable(
            f"no store runs in {folder}: start `tidegate host` or `tidegate up`, or name another "
            "with --data FOLDER or --store URL"
        )
    return [found]


@contextlib.asynccontextmanager
async def open_store(urls: Sequence[str]) -> AsyncIterator[PostgresStore]:
    """Open the store for the duration of the context."""
    store = build_store(urls)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def ask_store(urls: Sequence[str], work: Callable[[PostgresStore], Awaitable[Result]]) -> Result:
    """Open the store, run `work` with it, and return the result."""

    async def asked() -> Result:
        async with open_store(urls) as store:
            return await work(store)

    return asyncio.run(asked())


# The fleet as the settings define it: the provider of machines, and its options.


# The time a machine needs to stop in addition to its workers' drain: its node and its last reports.
_EXIT_S = 30.0


def build_fleet(
    settings: Settings,
    store: LeaderStore,
    store_urls: Sequence[str],
    recorder: Recorder | None = None,
    config: Path | None = None,
) -> Fleet | None:
    """Return the fleet of the settings; None if there is no provider of machines."""
    from tidegate.fleet.fleet import Fleet

    chosen = settings.fleet
    if chosen.provider == "none":
        return None
    provider: Provider
    if chosen.provider == "process":
        provider = build_process_provider(settings, store_urls, config)
    else:
        from tidegate.fleet.providers import CommandProvider, CommandTemplate

        if chosen.boot is None or chosen.halt is None or chosen.listing is None:
            raise InvalidValue("the provider command needs fleet.boot, fleet.halt and fleet.list")
        provider = CommandProvider(
            CommandTemplate(chosen.boot),
            CommandTemplate(chosen.halt),
            CommandTemplate(chosen.listing),
            fleet=chosen.name,
            store_urls=store_urls,
            folder=_fleet_folder(settings),
            boot_deadline_s=chosen.command_deadline_s,
            halt_deadline_s=chosen.command_deadline_s,
            list_deadline_s=chosen.list_deadline_s,
        )
    return Fleet(store, provider, fleet_options(settings), recorder)


def fleet_options(settings: Settings) -> FleetOptions:
    """Return the limits of the fleet: numbers of machines, hosts and timeouts."""
    from tidegate.fleet.fleet import FleetOptions

    chosen = settings.fleet
    return FleetOptions(
        boot_deadline_s=chosen.boot_deadline_s,
        tries=chosen.tries,
        backoff_s=chosen.backoff_s,
        lost_s=chosen.lost_s,
        list_s=chosen.list_interval_s,
        machines_max=chosen.machines_max,
        hosts=chosen.hosts,
        machines_per_host=chosen.machines_per_host,
        provisioning=Provisioning(chosen.provisioning),
    )


def build_process_provider(
    settings: Settings, store_urls: Sequence[str], config: Path | None
) -> ProcessProvider:
    """Return the provider whose machines are processes on this computer."""
    from tidegate.fleet.providers import ProcessProvider

    data = settings.store.data_folder.resolve()
    return ProcessProvider(
        _fleet_folder(settings),
        boot_s=settings.fleet.boot_s,
        halt_s=settings.fleet.drain_s + _EXIT_S,
        store_urls=store_urls,
        environment={
            "TIDEGATE_STORE__DATA": str(data),
            "TIDEGATE_TELEMETRY__LAKE": settings.telemetry.lake or str(data / "lake"),
        },
        arguments=() if config is None else ("--config", str(config.resolve())),
    )


def _fleet_folder(settings: Settings) -> Path:
    """Return the folder with the records of machines on this computer."""
    return settings.store.data_folder.resolve() / "fleet"


# The control loops of a node process, and the queues that the settings declare.
#
# The state of the running system takes precedence over the settings. Otherwise the restart of a
# node would undo an operator's change. A section [queues.NAME] creates its queue if it does not
# exist, and sets its scaling if it has none. If both differ, the log reports it with the command
# that applies the settings.


log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running_loops(
    node: Node, settings: Settings, store_urls: Sequence[str], config: Path | None = None
) -> AsyncIterator[None]:
    """Run the node's control loops in this context; they end before the node leaves the cluster."""
    from tidegate.control.alerts import Alerts, AlertTargets

    chosen = settings.alerts
    alerts = Alerts(
        AlertTargets(
            command=chosen.command,
            webhook=chosen.webhook,
            warnings=chosen.warnings,
            timeout_s=chosen.timeout_s,
            attempts=chosen.attempts,
        )
    )
    recorder = None if node.recording is None else node.recording.recorder
    fleet = build_fleet(settings, node.store, store_urls, recorder, config)
    loops = build_control(node, settings, recorder, fleet, alerts)
    running = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield
    finally:
        await cancel_and_wait(running)
        await alerts.stop()
        if fleet is not None:
            await fleet.close()


def build_control(
    node: Node,
    settings: Settings,
    recorder: Recorder | None,
    fleet: Fleet | None,
    alerts: Alerts | None,
) -> tuple[ControlLoops, PrefetchLoop]:
    """Return the loops of a node: those of the leader, and the one of its own queues' consumers."""
    from tidegate.agreements.document import AgreementInvalid, read_agreements
    from tidegate.control.journal import PrefetchJournal
    from tidegate.control.leader import ControlLoops
    from tidegate.control.learned import AcceptedModels, PrefetchModels
    from tidegate.control.prefetch import PrefetchLoop
    from tidegate.engines.native.actuator import NativeActuator
    from tidegate.engines.native.sensor import NativeSensor
    from tidegate.telemetry.models import ModelRegistry

    try:
        agreements = read_agreements(settings.pipeline.agreement_places)
    except AgreementInvalid as wrong:
        log.error("no agreement of [pipeline] is judged live: %s", wrong)
        agreements = []
    leading = ControlLoops(
        node.store,
        node,
        NativeSensor(node.store.members, node.node_clients.request_with_body),
        NativeActuator(node.store, node.node_clients.request),
        fleet=fleet,
        learned=AcceptedModels(ModelRegistry(settings.knowledge_folder, log.warning)),
        recorder=recorder,
        alerts=alerts,
        clock=node.clock,
        agreements=agreements,
    )
    prefetch = PrefetchLoop(
        node.ownership.with_prefetch_goal,
        node.name,
        PrefetchJournal(node.store, recorder, node.clock.wall),
        learned=PrefetchModels(ModelRegistry(settings.knowledge_folder, log.warning)),
        recorder=recorder,
        clock=node.clock,
    )
    return leading, prefetch


async def declare_queues(store: Store, queues: Mapping[str, Scaling]) -> None:
    """Create the queues of the settings, and set the scaling of those without any."""
    for name, scaling in queues.items():
        queue = await store.create_queue(name, True) or await store.find_queue(None, name)
        if queue is None:
            continue
        topology = await store.topology(queue.queue_id)
        if topology is None:
            # If several nodes start with the same settings, one of them sets the scaling first.
            with contextlib.suppress(ChangedMeanwhile):
                await store.set_scaling(queue.queue_id, scaling, None)
            log.info("queue scales as the settings say", extra={"queue": name})
        elif topology.scaling != scaling:
            said, held = format_scaling_keys(scaling), format_scaling_keys(topology.scaling)
            differ = ", ".join(
                f"{key} = {held[key]} (settings: {said[key]})"
                for key in said
                if said[key] != held[key]
            )
            log.warning(
                "queue %s was changed while it ran, and stays so: %s. `tidegate scale %s "
                "--from-settings` applies the settings",
                name,
                differ,
                name,
            )


async def declare_goals(store: Store, goals: Mapping[str, PrefetchGoal]) -> None:
    """Create the queues with a prefetch goal in the settings; existing queues keep their policy."""
    for name, goal in goals.items():
        if await store.create_queue(name, True, QueuePolicy(prefetch=goal)) is not None:
            continue
        queue = await store.find_queue(None, name)
        if queue is not None and queue.policy.prefetch != goal:
            log.warning(
                "queue %s exists, and its prefetch stays as it is: %s (settings: %s). "
                "`tidegate policy %s --prefetch-…` changes it",
                name,
                format_goal(queue.policy.prefetch),
                format_goal(goal),
                name,
            )


# The store and nodes of one computer, which `up` starts, watches and restarts.
#
# Each node is a separate process (`tidegate node`), and so is the console.


# A machine that led meanwhile may have booted another one, so stopping is repeated.
_ROUNDS = 3


class LocalCluster:
    """A store, the nodes on it, and the console, as child processes of this one."""

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
        self._nodes: list[SupervisedProcess] = []
        self._machines: ProcessProvider | None = None
        self._console: SupervisedProcess | None = None
        # Set while the store runs.
        self.store_urls: list[str] = []

    @property
    def _places(self) -> dict[str, str]:
        """The environment with the places of data: in the data folder, not the working folder."""
        data = self._data.expanduser().resolve()
        return {
            "TIDEGATE_STORE__DATA": str(data),
            "TIDEGATE_TELEMETRY__LAKE": self._settings.telemetry.lake or str(data / "lake"),
            "TIDEGATE_PIPELINE__KNOWLEDGE": (
                self._settings.pipeline.knowledge or str(data / "knowledge")
            ),
        }

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self._nodes]

    @property
    def metrics_addresses(self) -> list[str]:
        return [one for node in self._nodes for one in node.addresses[1:]]

    @property
    def console_address(self) -> str:
        return "" if self._console is None else self._console.address

    @property
    def how_to_join(self) -> str | None:
        """A shell command that starts a further node on this machine; None without a store port.

        The command reads the password from a file and does not contain it.
        """
        if self._embedded is None or self._store_port is None:
            return None
        password = self._data.expanduser().resolve() / "password"
        url = f"postgresql://tidegate:$(cat {password})@127.0.0.1:{self._store_port}/tidegate"
        # Use the environment, because other users of the machine can read command lines.
        return f'TIDEGATE_STORE__URL="{url}" tidegate node --port 0'

    def start(
        self,
        nodes: int,
        first_port: int,
        config: Path | None,
        first_metrics_port: int | None = None,
        *,
        # Set if the user did not choose the ports: a node then falls back to a free port.
        is_derived: bool = False,
    ) -> None:
        """Start the store and the nodes, and return when all nodes serve."""
        urls = self._settings.store.all_urls
        # Machines that these nodes boot as processes end with this process.
        become_keeper()
        if not urls:
            from tidegate.storage.embedded import EmbeddedPostgres

            self._embedded = EmbeddedPostgres(self._data, port=self._store_port)
            urls = [self._embedded.start()]
        self.store_urls = urls
        self._machines = self._machines_here(urls, config)
        for index in range(nodes):
            port = first_port + index if first_port else 0
            metrics_port = first_metrics_port + index if first_metrics_port else first_metrics_port
            self._nodes.append(
                SupervisedProcess(
                    node_spec(
                        urls,
                        port,
                        config=config,
                        metrics_port=metrics_port,
                        is_derived=is_derived,
                        environment=self._places,
                        log_file=self._log_file,
                    )
                )
            )
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_ready()

    def start_console(self, first_port: int, config: Path | None) -> None:
        """Start the console of these nodes; `watch` returns its address when it serves.

        A console that cannot start does not stop the nodes.
        """
        if not is_installed():
            print(f"no console: {INSTALL_COMMAND}", file=sys.stderr)
            return
        chosen = self._settings.console
        derived = first_port + CONSOLE_PORT_OFFSET if first_port else 0
        port = chosen.port if chosen.port is not None else derived if derived < 2**16 else 0
        self._console = SupervisedProcess(
            console_spec(
                self.addresses,
                self.store_urls,
                host=chosen.host,
                port=port,
                is_derived=chosen.port is None,
                config=config,
                environment=self._places,
                log_file=self._log_file,
            )
        )
        self._console.watch()

    def watch(self) -> str | None:
        """Restart processes that died; return the console's address when it begins to serve."""
        try:
            if self._embedded is not None and self._embedded.ensure_running():
                log.error("PostgreSQL had died and was started again")
        except TidegateError as failure:
            # PostgreSQL died again while it recovered. The next call tries again.
            log.error("PostgreSQL did not come back yet: %s", failure)
            return None
        for node in self._nodes:
            node.watch()
        begins = self._console is not None and self._console.watch()
        return self.console_address if begins else None

    def _machines_here(self, urls: list[str], config: Path | None) -> ProcessProvider | None:
        """Return the provider of machines on this computer; None if the machines run elsewhere."""
        if self._settings.fleet.provider != "process":
            return None

        return build_process_provider(
            self._settings.with_data(self._data.expanduser()), urls, config
        )

    def stop(self) -> None:
        if self._console is not None:
            self._console.terminate()
        # Stop the nodes before the machines: the leader is usually one of these nodes, and it would
        # boot new machines for those that stop.
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()
        if self._console is not None:
            self._console.wait()
        self._stop_machines()
        if self._embedded is not None:
            self._embedded.stop()

    def _stop_machines(self) -> None:
        if self._machines is None:
            return
        for _ in range(_ROUNDS):
            try:
                if not asyncio.run(self._machines.stop_all()):
                    return
            except TidegateError as failure:
                log.error("machines were left behind: %s", failure)
