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
from time import monotonic
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from tidegate.cli.command_line import NotFound, exit_code_of
from tidegate.cli.options import ConfigOption, MetricsPortOption, duration_option
from tidegate.cli.output import set_up_logs
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import StoreDataOption, StoreOption, open_store, running_stores
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.runtime import cancel_and_wait, user_module
from tidegate.core.services import Engine, probe_mark
from tidegate.fleet.process import ReadyPipe, end_with_parent
from tidegate.laws.http.balancing import BetterOfTwo, Chosen, Policy, balancing_policy

if TYPE_CHECKING:
    from tidegate.cli.settings import Settings
    from tidegate.core.services import Door, DoorSample, HostingStore, Instance, Service
    from tidegate.telemetry.http_pages import DoorPages
    from tidegate.telemetry.prometheus import AgreementStats
    from tidegate.telemetry.recorder import HttpRequestSamples, HttpSampler, Recorder


log = logging.getLogger(__name__)

# The time between two reads of the agreement's status, for /metrics.
_STANDINGS_S = 5.0
_ALL_ADDRESSES = ("0.0.0.0", "::")


TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="NETWORK",
        help="Network of proxies whose X-Forwarded-For headers the door trusts, such "
        "as 10.0.0.0/8; may be repeated. [default: none]",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("door")(door)


def door(
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="Name of the service, as in `http =` of its agreement."
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free port.")
    ] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="The program that serves as the door. [default: the engine of the service]"
        ),
    ] = None,
    drain: Annotated[
        float,
        duration_option("Time that running requests have to finish after SIGTERM. [default: 30s]"),
    ] = 30.0,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="Host name or address under which clients and the probe reach the door. "
            "[default: --host, or this computer's name if the door listens on all "
            "addresses]"
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
                trusted=parse_networks(trust or ()),
            )
        )
    except TidegateError as failure:
        if not ready.report(str(failure)):
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
    from tidegate.control.services.door import DoorLoop

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_store(urls) as store:
        service = await find_service(store, name)
        front = make_door(service, host, port, engine, trusted)
        telemetry = DoorTelemetry(settings, name, store, metrics_port)
        await front.start()
        try:
            await telemetry.start(urlsplit(front.address).port or 0)
            record_requests(front, telemetry.requests)
            reached = reached_at(front.address, advertise)
            loop = DoorLoop(front, store, name, told=telemetry.record, address=reached)
            # Before the address is known to clients, so that the first request finds instances.
            await loop.run_once()
            running = [
                asyncio.create_task(loop.run()),
                asyncio.create_task(_refresh(telemetry)),
            ]
            if not ready.report(front.address):
                if telemetry.address:
                    print(f"metrics: {telemetry.address}/metrics", file=sys.stderr)
                print(front.address, flush=True)
            await stop.wait()
            await cancel_and_wait(running)
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
        from tidegate.doors.gateway import GatewayDoor

        assert isinstance(front, GatewayDoor), "there is one of this engine"
        front.record_requests(samples)


async def _refresh(telemetry: DoorTelemetry) -> None:
    while True:
        with contextlib.suppress(TidegateError):
            await telemetry.refresh_standings()
        await asyncio.sleep(_STANDINGS_S)


async def find_service(store: HostingStore, name: str) -> Service:
    """Return the service of that name; raise `NotFound` with the names that exist."""
    services = {one.spec.name: one for one in await store.services()}
    if name in services:
        return services[name]
    there = f"there is {', '.join(sorted(services))}" if services else "nothing is hosted here"
    raise NotFound(f"no service is called {name!r}: {there}")


def check_engine(engine: Engine) -> None:
    """Raise `Unavailable` if the engine's program or package is not installed."""
    if engine is Engine.HAPROXY:
        from tidegate.doors.haproxy.door import haproxy_program

        haproxy_program()
        return
    if find_spec("httptools") is None:
        raise Unavailable("the gateway needs the package httptools: pip install 'tidegate[http]'")


def parse_networks(said: Sequence[str]) -> tuple[str, ...]:
    """Return the networks of `--trust`; raise `InvalidValue` for an invalid one."""
    for one in said:
        try:
            ip_network(one)
        except ValueError as failure:
            raise InvalidValue(f"--trust {one!r}: {failure}; write 10.0.0.0/8, or ::1") from None
    return tuple(said)


def make_door(
    service: Service,
    host: str,
    port: int,
    engine: Engine | None,
    trusted: tuple[str, ...] = (),
) -> Door:
    """Return a door for the service, of the requested engine or else the service's own."""
    from tidegate.doors import DoorSettings, door_limits

    spec = service.spec
    engine = engine or spec.engine
    check_engine(engine)
    balancing: str | Policy = spec.balancing
    if engine is Engine.GATEWAY:
        balancing = parse_balancing_policy(spec.balancing, Random())
    settings = DoorSettings(
        service=spec.name,
        host=host,
        port=port,
        balancing=balancing,
        session_secret=service.secret.encode() if spec.sticky else None,
        health_path=spec.health_path,
        trusted_peers=trusted,
        probe_mark=probe_mark(service.secret).encode(),
        limits=door_limits(spec),
    )
    if engine is Engine.HAPROXY:
        from tidegate.doors.haproxy.door import HaproxyDoor

        return HaproxyDoor(settings)
    from tidegate.doors.gateway import GatewayDoor

    return GatewayDoor(settings)


class DoorTelemetry:
    """Receives the samples of one door, and serves and records them."""

    def __init__(
        self, settings: Settings, service: str, store: HostingStore, metrics_port: int | None
    ) -> None:
        self._settings = settings
        self._service = service
        self._store = store
        self._metrics_port = metrics_port
        self._recorder: Recorder | None = None
        self._sampler: HttpSampler | None = None
        self._pages: DoorPages | None = None
        self._standings: list[AgreementStats] = []

    @property
    def address(self) -> str:
        """The base URL of /metrics; empty if it is disabled."""
        return "" if self._pages is None else self._pages.address

    @property
    def requests(self) -> HttpRequestSamples | None:
        """Where the door adds single requests; None if they are not recorded."""
        return None if self._sampler is None else self._sampler.requests

    async def start(self, door_port: int) -> None:
        from tidegate.cli.wiring import build_recorder
        from tidegate.telemetry.recorder import HttpSampler

        if self._settings.metrics.enabled:
            self._pages = await self._opened_pages(door_port)
        self._recorder = build_recorder(self._settings)
        if self._recorder is not None:
            self._recorder.start(f"door-{self._service}-{socket.gethostname()}-{os.getpid()}")
            self._sampler = HttpSampler(self._recorder)

    async def _opened_pages(self, door_port: int) -> DoorPages:
        """Start the server of /metrics on the requested port, a derived port, or a free one."""
        from tidegate.cli.settings_sections import METRICS_PORT_OFFSET
        from tidegate.telemetry.http_pages import DoorPages

        asked = self._metrics_port
        derived = door_port + METRICS_PORT_OFFSET
        ports = [asked] if asked is not None else [derived, 0] if derived < 2**16 else [0]
        while True:
            pages = DoorPages(host=self._settings.metrics.host, port=ports.pop(0))
            try:
                await pages.start()
            except Unavailable as failure:
                # The user did not choose this port, so a free one serves as well.
                if not ports:
                    raise
                log.info("%s; on a free port then", failure)
            else:
                return pages

    def record(self, sample: DoorSample, instances: Sequence[Instance], concurrency: int) -> None:
        if self._sampler is not None:
            self._sampler.record(sample, instances, concurrency)
        if self._pages is not None:
            self._pages.update(sample, self._standings)

    async def refresh_standings(self) -> None:
        """Read the status of the service's agreements as last stored by the leader."""
        from tidegate.agreements.ledger import StoredAgreementStatus
        from tidegate.telemetry.prometheus import AgreementStats

        found = map(StoredAgreementStatus.from_json, (await self._store.standings()).values())
        self._standings = [
            AgreementStats(
                agreement=one.agreement,
                verdict=one.verdict.value,
                budget_left=one.standing.budget_left,
                burn_rate=one.standing.burn_hour,
            )
            for one in found
            if one is not None and one.http == self._service
        ]

    async def stop(self) -> None:
        if self._pages is not None:
            await self._pages.stop()
        if self._recorder is not None:
            self._recorder.stop()


# A balancing policy written by the user, named by `module:Class`, in the process of a door.
#
# The policy runs for every request, so an error in it must not stop the door. If it raises, or
# returns something that is not a candidate, the default policy chooses and the log gives the
# reason.


# The time between two log records about one policy, which may fail for thousands of requests a
# second.
_COMPLAINT_S = 60.0


class UserPolicy:
    """The user's policy, with a default policy for its failures."""

    def __init__(self, name: str, own: Policy, random: Random) -> None:
        self._name = name
        self._own = own
        self._instead = BetterOfTwo(random)
        self._complained_at = -_COMPLAINT_S

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        failure: Exception | None = None
        said = "it chose none of the candidates"
        try:
            chosen = self._own.choose(candidates, asker, family)
            if any(one is chosen for one in candidates):
                return chosen
        except Exception as raised:
            failure = raised
            said = "it failed"
        now = monotonic()
        if now >= self._complained_at + _COMPLAINT_S:
            self._complained_at = now
            log.error(
                "the policy %s: %s, and better-of-two chooses instead",
                *(self._name, said),
                exc_info=failure,
            )
        return self._instead.choose(candidates, asker, family)


def parse_balancing_policy(name: str, random: Random) -> Policy:
    """Return a built-in policy by its name, or the user's by `module:Class`.

    Raise `InvalidValue` if it does not exist or cannot be created.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        return balancing_policy(name, random)
    if not module_name or not class_name.isidentifier():
        raise InvalidValue(f"{name!r} is no MODULE:CLASS, such as nearest:Nearest")
    module = user_module(module_name)
    made = getattr(module, class_name, None)
    where = f"{module_name} ({getattr(module, '__file__', None) or 'no file'})"
    if made is None:
        raise InvalidValue(f"{where} has no {class_name!r}")
    if not isinstance(made, type):
        raise InvalidValue(
            f"{class_name!r} in {where} is of type {type(made).__name__}, and no class"
        )
    if not callable(getattr(made, "choose", None)):
        raise InvalidValue(
            f"{class_name!r} in {where} has no choose(candidates, asker, family), by which a "
            "policy says who gets the next request"
        )
    try:
        own = made()
    except Exception as failure:
        raise InvalidValue(
            f"{class_name!r} in {where} cannot be made without arguments: {failure!r}"
        ) from None
    return UserPolicy(name, own, random)
