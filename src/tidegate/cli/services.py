"""The commands `tidegate services`, `deploy` and `undeploy`, for a store that already runs."""

from __future__ import annotations

import asyncio
import enum
import getpass
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.command_line import EMPTY_RESULT, NotFound
from tidegate.cli.options import ConfigOption, duration_option, flatten_options
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.service_options import (
    DEFAULT_SERVICE_OPTIONS,
    AgreementOption,
    ServiceOptions,
    ServiceRequest,
    TargetArgument,
    checked_request,
    offer_of,
)
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import StoreDataOption, StoreOption, ask_store, open_store, running_stores
from tidegate.core.decisions import OVERRIDE_LAW, Decision
from tidegate.core.errors import ChangedMeanwhile, InvalidValue, Unavailable
from tidegate.core.services import (
    NO_OVERRIDE,
    DoorSample,
    Instance,
    InstanceState,
    Service,
    ServiceOverride,
    ServiceSpec,
    decision_subject,
    describe_override_change,
    override_problems,
)
from tidegate.core.text import escape_control_characters

if TYPE_CHECKING:
    from tidegate.agreements.document import Agreement
    from tidegate.core.services import HostingStore
    from tidegate.core.store import Store
    from tidegate.storage.postgres.store import PostgresStore


_POLL_S = 0.2
_SERVICE_COLUMNS = [
    Column("service", style="bold"),
    Column("version", right=True),
    Column("instance", right=True),
    Column("state"),
    Column("machine", right=True),
    Column("address", spare=True),
    Column("doors", spare=True),
    Column("detail"),
]


def register_services(app: typer.Typer) -> None:
    app.command("deploy")(deploy)
    app.command("undeploy")(undeploy)
    app.command("services")(services)


@flatten_options()
def deploy(
    target: TargetArgument,
    agreement: AgreementOption,
    options: ServiceOptions = DEFAULT_SERVICE_OPTIONS,
    wait: Annotated[
        float,
        duration_option(
            "Wait this long for the new version to serve; 0s does not wait. [default: 120s]"
        ),
    ] = 120.0,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Deploy an application, or a new version of it, to a running store without failing a request.

    Example: `tidegate deploy shop:app --agreement shop.toml --wait 60s`
    """
    settings = load_settings(config, os.environ)
    asked = checked_request(target, agreement, options)
    urls = running_stores(store, data, settings)
    offer = offer_of(asked, settings.with_data(data), urls)
    asyncio.run(deploy_and_wait(urls, offer, wait))


async def deployed(store: HostingStore, asked: ServiceRequest) -> Service:
    """Store the code, then the service, and return the service."""
    spec = asked.spec
    if asked.code is not None:
        spec = msgspec.structs.replace(spec, package=await store.put_package(asked.code))
    return await store.deploy(spec)


async def deploy_and_wait(urls: Sequence[str], asked: ServiceRequest, patience_s: float) -> None:
    """Deploy, and wait until only the new version serves.

    Raise `Unavailable` with the reason if it does not; the previous version then continues to run.
    A `patience_s` of 0 does not wait.
    """
    async with open_store(urls) as store:
        name = asked.spec.name
        before, _ = await read_service(store, name)
        service = await deployed(store, asked)
        print(f"{name}: version {service.version} is deployed", file=sys.stderr)
        if before is not None and (kept := read_at_door_start(before.spec, service.spec)):
            print(
                f"{name}: doors that are open keep their {kept} until they are started again",
                file=sys.stderr,
            )
        if not patience_s:
            return
        rollout = Rollout(service, least_instances(service, asked.agreement))
        deadline = time.monotonic() + patience_s
        while True:
            now, instances = await read_service(store, name)
            for line in rollout.poll(now, instances):
                print(f"{name}: {line}", file=sys.stderr)
            progress = rollout.progress(now, instances, await store.door_samples(name))
            if progress is RolloutState.DONE:
                print(f"{name}: version {service.version} serves", file=sys.stderr)
                return
            if progress is RolloutState.FAILED or time.monotonic() > deadline:
                why = rollout.trouble or f"it does not serve after {patience_s:g} s"
                raise Unavailable(
                    f"version {service.version} of {name} does not come up: {why}. What ran before "
                    "runs on; deploy again when it is mended"
                )
            await asyncio.sleep(_POLL_S)


def least_instances(service: Service, agreement: Agreement) -> int:
    """Return the minimum number of instances, from the override or else the agreement."""
    agreed = agreement.resources
    return service.by_hand.bounds(agreed.replicas_min, agreed.replicas_max)[0]


def read_at_door_start(before: ServiceSpec, now: ServiceSpec) -> str:
    """Return the changed options that a door reads only at its start."""
    changed = (
        ("engine", before.engine != now.engine),
        ("balancing", before.balancing != now.balancing),
        ("sessions", before.sticky != now.sticky),
        ("health path", before.health_path != now.health_path),
        ("deadline", before.deadline_s != now.deadline_s),
        ("answer timeout", before.answer_timeout_s != now.answer_timeout_s),
        ("longest body", before.body_bytes_max != now.body_bytes_max),
    )
    return ", ".join(name for name, is_other in changed if is_other)


async def read_service(store: HostingStore, name: str) -> tuple[Service | None, list[Instance]]:
    """Return a service, None if it does not exist, and its instances."""
    services = {one.spec.name: one for one in await store.services()}
    return services.get(name), await store.instances(name)


def undeploy(
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="Name of the service, as in `http =` of its agreement."
        ),
    ],
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Stop hosting a service; its instances finish their requests and end."""
    urls = running_stores(store, data, load_settings(config, os.environ))
    if not ask_store(urls, lambda found: found.undeploy(service)):
        raise NotFound(f"no service is called {service!r}: see `tidegate services`")
    print(f"{service} is hosted no longer", file=sys.stderr)


def services(
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the hosted services: versions, instances with states and machines, and doors."""
    urls = running_stores(store, data, load_settings(config, os.environ))
    output = Output(json)
    found = ask_store(urls, _all)
    if json:
        output.json([_as_json(*one) for one in found])
    elif found:
        output.table(_SERVICE_COLUMNS, [row for one in found for row in _rows(*one)])
    if not found:
        if not json:
            output.line("nothing is hosted here", style="dim")
        raise typer.Exit(EMPTY_RESULT)


async def _all(
    store: PostgresStore,
) -> list[tuple[Service, list[Instance], list[DoorSample]]]:
    return [
        (one, await store.instances(one.spec.name), await store.door_samples(one.spec.name))
        for one in sorted(await store.services(), key=lambda one: one.spec.name)
    ]


def _rows(
    service: Service, instances: Sequence[Instance], doors: Sequence[DoorSample]
) -> list[list[Cell]]:
    addresses = " ".join(sorted({one.address for one in doors})) or None
    head: list[Cell] = [service.spec.name, service.version, None, None, None, None, addresses]
    rows: list[list[Cell]] = [[*head, service.detail or None]]
    for one in instances:
        state = "spare" if one.is_spare and one.state is InstanceState.READY else one.state.value
        rows.append(
            [
                *(service.spec.name, one.version, one.instance_id, state),
                *(one.machine_id, one.address, None, one.detail or None),
            ]
        )
    return rows


def _as_json(
    service: Service, instances: Sequence[Instance], doors: Sequence[DoorSample]
) -> dict[str, object]:
    spec = service.spec
    return {
        "service": spec.name,
        "version": service.version,
        "target": spec.target,
        "engine": spec.engine.value,
        "balancing": spec.balancing,
        "sticky": spec.sticky,
        "concurrency": spec.concurrency,
        "spares": spec.spares,
        "deadline_s": spec.deadline_s,
        "answer_timeout_s": spec.answer_timeout_s,
        "body_bytes_max": spec.body_bytes_max,
        # Names only, because values may be secrets.
        "environment": sorted(spec.environment),
        "detail": service.detail or None,
        "by_hand": service.by_hand,
        "instances": instances,
        "doors": [
            {
                "address": one.address,
                "in_flight": one.in_flight,
                "waiting": one.waiting,
                "trouble": one.trouble or None,
            }
            for one in doors
        ],
    }


# The command `override`: overrides of the control law of an HTTP service.
#
# Like `deploy` it writes to the store, and access to the store is the only permission it needs. A
# change is applied on top of concurrent changes, and recorded as a decision.


_OVERRIDE_COLUMNS = [Column("override", style="bold"), Column("value")]
# How often to try a change that collides with changes by other clients.
_TRIES_MAX = 8


def register_override(app: typer.Typer) -> None:
    app.command("override")(override)


def override(
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="Name of the service, as in `http =` of its agreement."
        ),
    ],
    instances: Annotated[
        int | None, typer.Option(min=1, help="Set the number of instances, whatever the load is.")
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(
            "--min",
            min=1,
            help="Set the smallest number of instances, whatever the agreement says.",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, help="Set the largest number of instances, whatever the agreement says."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Set the maximum number of concurrent requests of each instance."),
    ] = None,
    admit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Set the maximum number of concurrent requests that all doors admit together.",
        ),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", help="Remove all other overrides; the law decides within the agreed bounds."
        ),
    ] = False,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the overrides of an HTTP service; with options, set or remove them.

    An override takes precedence over the control law and the agreement until --auto removes it.

    Example: `tidegate override shop --min 3`
    """
    urls = running_stores(store, data, load_settings(config, os.environ))
    named = {
        "instances": instances,
        "least": least,
        "most": most,
        "concurrency": concurrency,
        "in_flight_max": admit,
    }
    changes = {name: value for name, value in named.items() if value is not None}
    overrides = ask_store(urls, lambda found: override_service(found, service, changes, auto=auto))
    output = Output(json)
    if json:
        output.json({"service": service, "by_hand": overrides})
        return
    if overrides == NO_OVERRIDE:
        print(
            f"service {service} has no override: the law decides within the agreed bounds",
            file=sys.stderr,
        )
        return
    said = msgspec.structs.asdict(overrides).items()
    output.table(
        _OVERRIDE_COLUMNS, [[name.replace("_", " "), v] for name, v in said if v is not None]
    )


async def override_service(
    store: Store, name: str, changes: dict[str, Any], *, auto: bool = False
) -> ServiceOverride:
    """Change the overrides and return them; without changes, return the present ones.

    `auto` removes all overrides except the given ones.
    """
    for left in reversed(range(_TRIES_MAX)):
        service = await _service(store, name)
        before = service.by_hand
        if not changes and not auto:
            return before
        wanted = msgspec.structs.replace(NO_OVERRIDE if auto else before, **changes)
        _check(service, wanted)
        try:
            await store.steer_service(name, wanted, before)
        except ChangedMeanwhile:
            if not left:
                raise
            continue
        await _note(store, name, before, wanted)
        return wanted
    raise AssertionError("the last try returns or raises")


async def _service(store: Store, name: str) -> Service:
    for one in await store.services():
        if one.spec.name == name:
            return one
    raise NotFound(f"no service is called {name!r}: see `tidegate services`")


def _check(service: Service, wanted: ServiceOverride) -> None:
    from tidegate.agreements.document import AgreementInvalid, parse_agreement

    least, most = 1, None
    try:
        agreed = parse_agreement(service.spec.agreement, service.spec.name).resources
        least, most = agreed.replicas_min, agreed.replicas_max
    except AgreementInvalid:
        # An invalid agreement sets no bounds; the leader reports it.
        pass
    if wrong := override_problems(wanted, least, most):
        raise InvalidValue("; ".join(wrong))


async def _note(store: Store, name: str, before: ServiceOverride, after: ServiceOverride) -> None:
    """Record the change and its author as a decision, for `tidegate explain`."""
    if before == after:
        return
    who = _who()
    reason = describe_override_change(before, after)
    change = Decision(
        at=time.time(),
        loop="http",
        service=decision_subject(name),
        law=OVERRIDE_LAW,
        rule=f"changed by {who}",
        reason=reason[0].upper() + reason[1:],
        otherwise="Without it the law would decide as before.",
        by=who,
    )
    _, epoch = await store.leader()
    await store.note_decision(change.service, msgspec.json.encode(change), epoch)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A user id without a name is common in containers.
        return f"user {os.getuid()}"


# The progress of a deployment: which instances start, serve or fail.
#
# The command polls the store a few times a second and prints each change once, regardless of which
# process causes it.


# A deployment fails after this many failed instances of the new version.
FAILURES_MAX = 2


class RolloutState(enum.Enum):
    """The state of a deployment."""

    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"


class Rollout:
    """The deployment of one version of one service."""

    def __init__(self, service: Service, replicas_min: int = 1) -> None:
        self._name = service.spec.name
        self._version = service.version
        self._wanted = replicas_min + service.spec.spares
        self._told: dict[int, str] = {}
        self._detail = ""
        self._failed: dict[int, str] = {}

    def poll(self, service: Service | None, instances: Sequence[Instance]) -> list[str]:
        """Return a sentence for each change since the previous call."""
        news = []
        seen = set()
        for one in instances:
            seen.add(one.instance_id)
            words = _instance_text(one)
            if self._told.get(one.instance_id) != words:
                self._told[one.instance_id] = words
                news.append(f"instance {one.instance_id} {words}")
            if one.state is InstanceState.FAILED and one.version == self._version:
                self._failed[one.instance_id] = one.detail
        for gone in [one for one in self._told if one not in seen]:
            del self._told[gone]
            news.append(f"instance {gone} has ended")
        detail = "" if service is None else service.detail
        if detail != self._detail:
            self._detail = detail
            if detail:
                news.append(escape_control_characters(detail))
        return news

    def progress(
        self,
        service: Service | None,
        instances: Sequence[Instance],
        doors: Sequence[DoorSample] = (),
    ) -> RolloutState:
        """Return DONE when only the new version serves, and FAILED when it does not start.

        A door learns of a draining instance some time after the store does. Until every door has
        reported that, clients without a session may still reach an old instance.
        """
        if service is None:
            return RolloutState.FAILED
        ours = [one for one in instances if one.version >= self._version]
        ready = [one for one in ours if one.state is InstanceState.READY]
        serving = [one for one in ready if not one.is_spare]
        # An instance that only serves existing sessions gets no new clients, so the wait ignores
        # it.
        older = [
            one for one in instances if one.version < self._version and one.sessions_until is None
        ]
        given = {number for door in doors for number in door.gives_to or ()}
        is_heard = given <= {one.instance_id for one in ours}
        if serving and not older and is_heard and len(ready) >= self._wanted:
            return RolloutState.DONE
        is_given_up = service.detail.startswith(f"version {self._version} does not start")
        if not ready and (is_given_up or len(self._failed) >= FAILURES_MAX):
            return RolloutState.FAILED
        return RolloutState.UNDER_WAY

    @property
    def trouble(self) -> str:
        """The reason why the new version does not serve, as far as it is known."""
        if self._failed:
            newest = max(self._failed)
            return f"instance {newest} of version {self._version} {_why(self._failed[newest])}"
        return escape_control_characters(self._detail)


def _instance_text(one: Instance) -> str:
    where = "" if one.machine_id is None else f" on machine {one.machine_id}"
    version = f"version {one.version}"
    match one.state:
        case InstanceState.ORDERED if one.machine_id is None:
            return f"of {version} waits for a slot"
        case InstanceState.ORDERED:
            return f"of {version} comes to machine {one.machine_id}"
        case InstanceState.STARTING:
            return f"of {version} starts{where}"
        case InstanceState.READY if one.is_spare:
            return f"of {version} is ready at {one.address}, a spare"
        case InstanceState.READY:
            return f"of {version} serves at {one.address}"
        case InstanceState.DRAINING:
            return f"of {version} answers what it has, and ends"
        case InstanceState.FAILED:
            return f"of {version} {_why(one.detail)}"


def _why(detail: str) -> str:
    return f"failed: {escape_control_characters(detail)}" if detail else "failed"
