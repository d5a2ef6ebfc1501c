"""The commands `tidegate services`, `deploy` and `undeploy`, for a store that already runs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tidegate.cli.asking import duration_option
from tidegate.cli.exit_codes import NOTHING_THERE, NoSuch
from tidegate.cli.option_groups import spread
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.rollout import Progress, Rollout
from tidegate.cli.service_options import (
    AS_USUAL,
    AgreementOption,
    Asked,
    ServiceOptions,
    TargetArgument,
    asked_for,
    offer_of,
)
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import (
    StoreDataOption,
    StoreOption,
    ask_store,
    opened,
    running_stores,
)
from tidegate.core.errors import Unavailable
from tidegate.core.hosting import InstanceState, Service, ServiceSpec

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.core.hosting import DoorSample, HostingStore, Instance
    from tidegate.storage.postgres import PostgresStore

_LOOK_S = 0.2
_COLUMNS = [
    Column("service", style="bold"),
    Column("version", right=True),
    Column("instance", right=True),
    Column("state"),
    Column("machine", right=True),
    Column("address", spare=True),
    Column("doors", spare=True),
    Column("detail"),
]


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)
    app.command("undeploy")(undeploy)
    app.command("services")(services)


@spread()
def deploy(
    target: TargetArgument,
    agreement: AgreementOption,
    options: ServiceOptions = AS_USUAL,
    wait: Annotated[
        float, duration_option("Until the new version serves; 0s: do not wait. [default: 120s]")
    ] = 120.0,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Deploy an application, or a new version of it, to a running store without failing a request.

    Example: `tidegate deploy shop:app --agreement shop.toml --wait 60s`
    """
    settings = load_settings(config, os.environ)
    asked = asked_for(target, agreement, options)
    urls = running_stores(store, data, settings)
    offer = offer_of(asked, settings.with_data(data), urls)
    asyncio.run(deploy_and_wait(urls, offer, wait))


async def deployed(store: HostingStore, asked: Asked) -> Service:
    """Store the code, then the service, and return the service."""
    spec = asked.spec
    if asked.code is not None:
        spec = msgspec.structs.replace(spec, package=await store.put_package(asked.code))
    return await store.deploy(spec)


async def deploy_and_wait(urls: Sequence[str], asked: Asked, patience_s: float) -> None:
    """Deploy, and wait until only the new version serves.

    Raise `Unavailable` with the reason if it does not; the previous version then continues to run.
    A `patience_s` of 0 does not wait.
    """
    async with opened(urls) as store:
        name = asked.spec.name
        before, _ = await seen(store, name)
        service = await deployed(store, asked)
        print(f"{name}: version {service.version} is deployed", file=sys.stderr)
        if before is not None and (kept := kept_by_doors(before.spec, service.spec)):
            print(
                f"{name}: doors that are open keep their {kept} until they are started again",
                file=sys.stderr,
            )
        if not patience_s:
            return
        rollout = Rollout(service, least_of(service, asked.agreement))
        deadline = time.monotonic() + patience_s
        while True:
            now, instances = await seen(store, name)
            for line in rollout.look(now, instances):
                print(f"{name}: {line}", file=sys.stderr)
            progress = rollout.progress(now, instances, await store.door_samples(name))
            if progress is Progress.DONE:
                print(f"{name}: version {service.version} serves", file=sys.stderr)
                return
            if progress is Progress.FAILED or time.monotonic() > deadline:
                why = rollout.trouble or f"it does not serve after {patience_s:g} s"
                raise Unavailable(
                    f"version {service.version} of {name} does not come up: {why}. What ran before "
                    "runs on; deploy again when it is mended"
                )
            await asyncio.sleep(_LOOK_S)


def least_of(service: Service, agreement: Agreement) -> int:
    """Return the minimum number of instances, from the override or else the agreement."""
    agreed = agreement.resources
    return service.by_hand.bounds(agreed.replicas_min, agreed.replicas_max)[0]


def kept_by_doors(before: ServiceSpec, now: ServiceSpec) -> str:
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


async def seen(store: HostingStore, name: str) -> tuple[Service | None, list[Instance]]:
    """Return a service, None if it does not exist, and its instances."""
    services = {one.spec.name: one for one in await store.services()}
    return services.get(name), await store.instances(name)


def undeploy(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="As `http =` calls it.")],
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Stop hosting a service; its instances finish their requests and end."""
    urls = running_stores(store, data, load_settings(config, os.environ))
    if not ask_store(urls, lambda found: found.undeploy(service)):
        raise NoSuch(f"no service is called {service!r}: see `tidegate services`")
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
        output.table(_COLUMNS, [row for one in found for row in _rows(*one)])
    if not found:
        if not json:
            output.line("nothing is hosted here", style="dim")
        raise typer.Exit(NOTHING_THERE)


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
