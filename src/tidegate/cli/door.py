"""The command `tidegate door SERVICE`: a front door before the instances of an HTTP service.

Theory of operation
-------------------

A door is a separate process. Any number of doors may serve the same instances. Each follows the
store by itself and no door knows another, so a failure of one affects only its own connections.

Actors in the process:

- The engine (`Door`) forwards requests: the built-in gateway, or an HAProxy process.
- `DoorLoop` reads the service and its instances from the store, and passes them to the engine. Each
  second it takes a sample of the engine's counters and reports it to the store.
- `DoorTelemetry` gets the same sample. It serves /metrics on a second port and records to the lake.
- A refresh task reads the status of the agreement every five seconds, for /metrics.

The door reports its address only after the first pass of `DoorLoop`. The first request therefore
finds instances.

Failures:

- The store does not answer: the door continues with the last known instances and limits. Counters
  are totals, so no counts are lost when the store returns.
- SIGTERM: the door accepts no new connections, and waits up to --drain for open requests.
- The parent process dies: the door stops, too (`end_with_parent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from ipaddress import ip_network
from random import Random
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from tidegate.cli.asking import duration_option
from tidegate.cli.door_telemetry import DoorTelemetry
from tidegate.cli.exit_codes import NoSuch, exit_code_of
from tidegate.cli.logs import set_up_logs
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption, MetricsPortOption
from tidegate.cli.store_wiring import StoreDataOption, StoreOption, opened, running_stores
from tidegate.core.ending import ended
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.hosting import Engine
from tidegate.core.probe_mark import probe_mark
from tidegate.fleet.parent import end_with_parent
from tidegate.fleet.ready_pipe import ReadyPipe

if TYPE_CHECKING:
    from tidegate.cli.settings.settings import Settings
    from tidegate.core.hosting import Door, HostingStore, Service
    from tidegate.laws.balancing import Policy
    from tidegate.telemetry.http_requests import HttpRequestSamples

log = logging.getLogger(__name__)

# The time between two reads of the agreement's status, for /metrics.
_STANDINGS_S = 5.0
_ALL_ADDRESSES = ("0.0.0.0", "::")


TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="NETWORK",
        help="Whose word about the client counts (X-Forwarded-For …), such as 10.0.0.0/8: that of "
        "a proxy in front. May be repeated. [default: nobody's]",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("door")(door)


def door(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="As `http =` calls it.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    engine: Annotated[
        Engine | None, typer.Option(help="What it is. [default: as the service says]")
    ] = None,
    drain: Annotated[
        float, duration_option("How long SIGTERM lets requests finish. [default: 30s]")
    ] = 30.0,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="Name or address under which others reach it, and the probe asks it. "
            "[default: --host, or this computer's name if that is all addresses]"
        ),
    ] = None,
    trust: TrustOption = None,
    metrics_port: MetricsPortOption = None,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Run a further front door for a service's instances, until SIGTERM or Ctrl-C.

    SERVICE is a service of `tidegate host` or `tidegate deploy`. All doors share its agreement and
    its limits.

    Example: `tidegate door shop --port 8081`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    end_with_parent()
    ready = ReadyPipe()
    import uvloop

    try:
        urls = running_stores(store, data, settings)
        if data is not None:
            settings = settings.with_data(data.expanduser())
        uvloop.run(
            _serve(
                *(urls, settings, service, host, port, engine, drain, metrics_port, ready),
                advertise=advertise,
                trusted=networks_of(trust or ()),
            )
        )
    except TidegateError as failure:
        if not ready.tell(str(failure)):
            raise
        raise typer.Exit(exit_code_of(failure)) from None


async def _serve(
    urls: Sequence[str],
    settings: Settings,
    name: str,
    host: str,
    port: int,
    engine: Engine | None,
    drain_s: float,
    metrics_port: int | None,
    ready: ReadyPipe,
    *,
    advertise: str | None,
    trusted: tuple[str, ...],
) -> None:
    from tidegate.control.door_loop import DoorLoop

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with opened(urls) as store:
        service = await found(store, name)
        front = door_of(service, host, port, engine, trusted)
        telemetry = DoorTelemetry(settings, name, store, metrics_port)
        await front.start()
        try:
            await telemetry.start(urlsplit(front.address).port or 0)
            record_requests(front, telemetry.requests)
            reached = reached_at(front.address, advertise)
            loop = DoorLoop(front, store, name, told=telemetry.take, address=reached)
            # Before the address is known to clients, so that the first request finds instances.
            await loop.run_once()
            running = [
                asyncio.create_task(loop.run()),
                asyncio.create_task(_refresh(telemetry)),
            ]
            if not ready.tell(front.address):
                if telemetry.address:
                    print(f"metrics: {telemetry.address}/metrics", file=sys.stderr)
                print(front.address, flush=True)
            await stop.wait()
            await ended(running)
        finally:
            cut_off = await front.stop(drain_s)
            await telemetry.stop()
            if cut_off:
                log.warning("%d connections were cut off", cut_off)


def reached_at(address: str, advertise: str | None = None) -> str:
    """Return the URL under which other machines reach a door that listens on `address`."""
    parts = urlsplit(address)
    host = advertise or parts.hostname or ""
    if host in _ALL_ADDRESSES:
        # A client that connected to 0.0.0.0 would reach its own computer.
        host = socket.gethostname()
    return f"http://[{host}]:{parts.port}" if ":" in host else f"http://{host}:{parts.port}"


def record_requests(front: Door, samples: HttpRequestSamples | None) -> None:
    """Let a gateway door record single requests; HAProxy does not report them."""
    if front.engine is Engine.GATEWAY:
        from tidegate.adapters.gateway.door import GatewayDoor

        assert isinstance(front, GatewayDoor), "there is one of this engine"
        front.record_requests(samples)


async def _refresh(telemetry: DoorTelemetry) -> None:
    while True:
        with contextlib.suppress(TidegateError):
            await telemetry.refresh_standings()
        await asyncio.sleep(_STANDINGS_S)


async def found(store: HostingStore, name: str) -> Service:
    """Return the service of that name; raise `NotFound` with the names that exist."""
    services = {one.spec.name: one for one in await store.services()}
    if name in services:
        return services[name]
    there = f"there is {', '.join(sorted(services))}" if services else "nothing is hosted here"
    raise NoSuch(f"no service is called {name!r}: {there}")


def check_engine(engine: Engine) -> None:
    """Raise `Unavailable` if the engine's program or package is not installed."""
    if engine is Engine.HAPROXY:
        from tidegate.adapters.haproxy.program import haproxy_program

        haproxy_program()
        return
    if find_spec("httptools") is None:
        raise Unavailable("the gateway needs the package httptools: pip install 'tidegate[http]'")


def networks_of(said: Sequence[str]) -> tuple[str, ...]:
    """Return the networks of `--trust`; raise `InvalidValue` for an invalid one."""
    for one in said:
        try:
            ip_network(one)
        except ValueError as failure:
            raise InvalidValue(f"--trust {one!r}: {failure}; write 10.0.0.0/8, or ::1") from None
    return tuple(said)


def door_of(
    service: Service,
    host: str,
    port: int,
    engine: Engine | None,
    trusted: tuple[str, ...] = (),
) -> Door:
    """Return a door for the service, of the requested engine or else the service's own."""
    from tidegate.adapters.door_settings import DoorSettings, limits_of

    spec = service.spec
    engine = engine or spec.engine
    check_engine(engine)
    balancing: str | Policy = spec.balancing
    if engine is Engine.GATEWAY:
        from tidegate.cli.own_policy import policy_said

        balancing = policy_said(spec.balancing, Random())
    settings = DoorSettings(
        service=spec.name,
        host=host,
        port=port,
        balancing=balancing,
        session_secret=service.secret.encode() if spec.sticky else None,
        health_path=spec.health_path,
        trusted_peers=trusted,
        probe_mark=probe_mark(service.secret).encode(),
        limits=limits_of(spec),
    )
    if engine is Engine.HAPROXY:
        from tidegate.adapters.haproxy.door import HaproxyDoor

        return HaproxyDoor(settings)
    from tidegate.adapters.gateway.door import GatewayDoor

    return GatewayDoor(settings)
