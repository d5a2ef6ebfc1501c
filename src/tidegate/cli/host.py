"""The command `tidegate host module:app --agreement shop.toml`: an application behind one address.

Theory of operation
-------------------

    checks → store and node, if none run → deploy → doors → watch until Ctrl-C

The command first checks everything that can be checked without side effects: the agreement, the
import of the application, the policy, and the ports. An error therefore starts no process.

Then there are three cases:

1. No store runs on this computer: the command starts a store and a node, as `tidegate up` does. The
   machines are processes on this computer unless the settings name a provider.
2. A store runs: the command deploys the service to it, and starts only doors.
3. A store runs and a door already serves the service at the same address: the command deploys,
   waits for the rollout, and ends.

In the first two cases it then watches five times a second. It restarts doors (and the store and
node, if they are its own) and prints each change of the rollout. It prints the address of a door
when a request through that door gets an answer.

At the end it stops its processes in this order: doors, which finish their requests; the node, which
leads; the machines with their instances; the store. In the second case the instances continue to
run until `tidegate undeploy`.

Failures:

- The new version does not start, or in the second case does not serve in time: the command ends
  with an error. On a running store the instances of the previous version continue to run.
- The service is undeployed meanwhile: the command ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from tidegate.cli.door import TrustOption, check_engine, parse_networks, reached_at
from tidegate.cli.options import ConfigOption, check_free, flatten_options
from tidegate.cli.output import set_up_logs, terminated_like_interrupted, undisturbed
from tidegate.cli.service_options import (
    DEFAULT_SERVICE_OPTIONS,
    AgreementOption,
    ServiceOptions,
    ServiceRequest,
    TargetArgument,
    checked_request,
    offer_of,
)
from tidegate.cli.services import (
    Rollout,
    RolloutState,
    deploy_and_wait,
    deployed,
    least_instances,
    read_service,
)
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import LocalCluster, StoreOption, ask_store, named_stores, open_store
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.services import probe_mark
from tidegate.fleet.processes import SupervisedProcess, door_spec
from tidegate.storage.postgres_server import mark_data_folder

if TYPE_CHECKING:
    from tidegate.cli.settings import Settings

_POLL_S = 0.2
_ANSWER_S = 2.0
# On a store that already runs: how long the new version may take until it serves.
_ROLLOUT_S = 120.0
_PORT_MAX = 65535
_PROVIDER_VARIABLE = "TIDEGATE_FLEET__PROVIDER"


def register(app: typer.Typer) -> None:
    app.command("host")(host)


@flatten_options()
def host(
    target: TargetArgument,
    agreement: AgreementOption,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the first door; 0 chooses a free port.")
    ] = 8080,
    listen: Annotated[
        str, typer.Option("--host", help="Address that the doors listen on.")
    ] = "127.0.0.1",
    doors: Annotated[
        int, typer.Option(min=1, max=16, help="Number of front doors, on consecutive ports.")
    ] = 1,
    node_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the node that runs beside the embedded store; 0 chooses a free "
            "port. [default: 7411, or a free port if 7411 is in use]",
        ),
    ] = None,
    trust: TrustOption = None,
    options: ServiceOptions = DEFAULT_SERVICE_OPTIONS,
    store: StoreOption = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the embedded PostgreSQL. [default: tidegate-data]"),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print the logs of all processes here instead of writing them to files.",
        ),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Host an ASGI application so that its agreement is kept, until SIGTERM or Ctrl-C.

    If no store runs, the command starts one, and a node that listens on port 7411 as that of
    `tidegate up` does. --node-port chooses another port; the metrics are 1000 above it. Run the
    command again with new code or another agreement to roll over to it without failing a request.

    Example: `tidegate host shop:app --agreement shop.toml --port 8080`
    """
    settings = load_settings(config, os.environ)
    level = settings.log.level
    set_up_logs(level if verbose or level == "error" else "warning", settings.log.format)
    asked = checked_request(target, agreement, options)
    check_engine(options.engine)
    trusted = parse_networks(trust or ())
    folder = (data or settings.store.data_folder).expanduser()
    running = _running(named_stores(store, data, settings), folder)
    ports = [port + index if port else 0 for index in range(doors)]
    if ports[-1] > _PORT_MAX:
        raise InvalidValue(
            f"{doors} doors from port {port} on would end at {ports[-1]}, and {_PORT_MAX} is the "
            "last: choose a lower --port"
        )
    is_served = bool(running) and _is_served(running, asked.spec.name, listen, port)
    for one in () if is_served else ports:
        check_free(listen, one)
    if not running:
        settings = _with_provider(settings, config)
        if node_port is not None:
            check_free(settings.node.host, node_port, "--node-port")
    elif node_port is not None:
        _print_line(
            "--node-port is for a node of its own, and one runs here already: it has no effect"
        )
    asked = offer_of(asked, settings.with_data(data), running)
    if is_served:
        # The doors of the service already exist, so only the deployment is left.
        asyncio.run(deploy_and_wait(running, asked, _ROLLOUT_S))
        return
    with _log_file(folder, verbose) as log_file, terminated_like_interrupted():
        house = None if running else LocalCluster(settings, folder, log_file=log_file)
        fronts: list[SupervisedProcess] = []
        try:
            urls = running
            if house is not None:
                usual_port = settings.node.port
                house.start(
                    1,
                    usual_port if node_port is None else node_port,
                    config,
                    settings.metrics.port,
                    # Few users need the node's address, so it may fall back to a free port.
                    is_derived=node_port is None,
                )
                urls = house.store_urls
                address = house.addresses[0]
                if node_port is None and not address.endswith(f":{usual_port}"):
                    _print_line(f"the node takes a free port: another program has {usual_port}")
                _print_line(f"node at {address}, data in {folder}")
            fronts += [
                SupervisedProcess(
                    door_spec(
                        urls,
                        asked.spec.name,
                        host=listen,
                        port=one,
                        engine=options.engine,
                        trusted=trusted,
                        drain_s=settings.fleet.drain_s,
                        config=config,
                        # The door records to the same lake as the nodes.
                        environment={
                            "TIDEGATE_STORE__DATA": str(folder.resolve()),
                            "TIDEGATE_TELEMETRY__LAKE": settings.with_data(folder.resolve()).lake,
                        },
                        log_file=log_file,
                    )
                )
                for one in ports
            ]
            asyncio.run(_host(urls, asked, fronts, house))
        finally:
            with undisturbed():
                _print_line("ends: doors first" + (", then instances" if house is not None else ""))
                for front in fronts:
                    front.terminate()
                for front in fronts:
                    front.wait()
                if house is not None:
                    house.stop()
    if running:
        name = asked.spec.name
        _print_line(f"{name} is hosted on; `tidegate undeploy {name}` ends it")


async def _host(
    urls: Sequence[str],
    asked: ServiceRequest,
    fronts: Sequence[SupervisedProcess],
    house: LocalCluster | None,
) -> None:
    """Deploy the service, start the doors, and watch them until a signal comes."""
    from tidegate.control.services.measurement import probe_door

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_store(urls) as store:
        service = await deployed(store, asked)
        name = service.spec.name
        _print_line(f"{name}: version {service.version} of {asked.spec.target}")
        others = sorted({sample.address for sample in await store.door_samples(name)})
        if house is None and others:
            _print_line(
                f"{name} is served at {', '.join(others)} already: this is one more door "
                "(`tidegate deploy` opens none)"
            )
        for front in fronts:
            # Start in this thread: the kernel ends the child when the thread that started it ends.
            front.start()
        for front in fronts:
            await asyncio.to_thread(front.wait_until_ready)
        rollout = Rollout(service, least_instances(service, asked.agreement))
        silent = list(fronts)
        away = ""
        # On another process's store, no node may be running that acts on the deployment.
        deadline = None if house is not None else time.monotonic() + _ROLLOUT_S
        while not stop.is_set():
            if house is not None:
                house.watch()
            for front in fronts:
                if front.watch():
                    _print_line(f"the door at {front.address} had died, and is there again")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _POLL_S)
                break
            try:
                now, instances = await read_service(store, name)
            except TidegateError as failure:
                if not away:
                    away = str(failure)
                    _print_line(f"{name} goes on as it is: {away}")
                continue
            if away:
                away = ""
                _print_line("the store answers again")
            for line in rollout.poll(now, instances):
                _print_line(f"{name}: {line}")
            if now is None:
                _print_line(f"{name} was undeployed: there is nothing left to do")
                return
            if not silent:
                continue
            is_late = deadline is not None and time.monotonic() > deadline
            if is_late or rollout.progress(now, instances) is RolloutState.FAILED:
                why = rollout.trouble or f"nothing has answered for {_ROLLOUT_S:g} s"
                raise Unavailable(f"{name} does not come up: {why}")
            for front in tuple(silent):
                # With the mark the request does not count as a client's: a check before the first
                # instance serves must not breach the agreement.
                path, mark = asked.spec.health_path, probe_mark(now.secret)
                if not (await probe_door(front.address, path, mark, _ANSWER_S)).failure:
                    silent.remove(front)
                    print(front.address, flush=True)


def _with_provider(settings: Settings, config: Path | None) -> Settings:
    """Return the settings; machines are local processes if the settings name no provider."""
    if settings.fleet.provider != "none":
        return settings
    # Through the environment, so that the node and its child processes get the setting, too.
    os.environ[_PROVIDER_VARIABLE] = "process"
    return load_settings(config, os.environ)


def _running(named: list[str], folder: Path) -> list[str]:
    """Return the store that already runs; empty if this command must start one."""
    if named:
        return named
    from tidegate.storage.embedded import running_url

    found = running_url(folder)
    return [] if found is None else [found]


def _is_served(urls: Sequence[str], service: str, host: str, port: int) -> bool:
    """Return whether a door of the service already serves at this address."""
    samples = ask_store(urls, lambda store: store.door_samples(service))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    ours = urlsplit(reached_at(f"http://{where}"))
    return any(
        (parts := urlsplit(one.address)).port == ours.port and parts.hostname == ours.hostname
        for one in samples
    )


@contextlib.contextmanager
def _log_file(folder: Path, verbose: bool) -> Iterator[IO[bytes] | None]:
    """Open the log file of all processes; yield None if they log to this terminal."""
    if verbose:
        yield None
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark_data_folder(folder)
        path = folder / "host.log"
        file = path.open("ab")
    except OSError as failure:
        raise Unavailable(
            f"{folder} cannot be the data folder: {failure.strerror}; name another with --data"
        ) from None
    with file:
        _print_line(f"logs go to {path}")
        yield file


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
