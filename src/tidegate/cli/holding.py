"""The command `hold`: overrides of the control law of an HTTP service.

Like `deploy` it writes to the store, and access to the store is the only permission it needs. A
change is applied on top of concurrent changes, and recorded as a decision.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.exit_codes import NoSuch
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import StoreDataOption, StoreOption, ask_store, running_stores
from tidegate.core.by_hand import NOTHING_SAID, ByHand, complaints, told
from tidegate.core.errors import ChangedMeanwhile, InvalidValue
from tidegate.core.hosting import Service, decided_about
from tidegate.core.steering import PERSON, Decision

if TYPE_CHECKING:
    from tidegate.core.ports import Store

_COLUMNS = [Column("held", style="bold"), Column("value")]
# How often to try a change that collides with changes by other clients.
_TRIES_MAX = 8


def register(app: typer.Typer) -> None:
    app.command("hold")(hold)


def hold(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="As `http =` calls it.")],
    instances: Annotated[
        int | None, typer.Option(min=1, help="So many serve, whatever is in hand.")
    ] = None,
    least: Annotated[
        int | None, typer.Option("--min", min=1, help="Instances at least, whatever is agreed.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Instances at most, whatever is agreed.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests that each instance has at a time.")
    ] = None,
    admit: Annotated[
        int | None, typer.Option(min=1, help="Requests that all doors let in at a time.")
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Give all else back: the law decides, as is agreed.")
    ] = False,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the overrides of an HTTP service; with options, set or remove them.

    An override takes precedence over the control law and the agreement until --auto removes it.

    Example: `tidegate hold shop --min 3`
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
    held = ask_store(urls, lambda found: hold_service(found, service, changes, auto=auto))
    output = Output(json)
    if json:
        output.json({"service": service, "by_hand": held})
        return
    if held == NOTHING_SAID:
        print(f"nothing of {service} is held: the law decides, as is agreed", file=sys.stderr)
        return
    said = msgspec.structs.asdict(held).items()
    output.table(_COLUMNS, [[name.replace("_", " "), v] for name, v in said if v is not None])


async def hold_service(
    store: Store, name: str, changes: dict[str, Any], *, auto: bool = False
) -> ByHand:
    """Change the overrides and return them; without changes, return the present ones.

    `auto` removes all overrides except the given ones.
    """
    for left in reversed(range(_TRIES_MAX)):
        service = await _service(store, name)
        before = service.by_hand
        if not changes and not auto:
            return before
        wanted = msgspec.structs.replace(NOTHING_SAID if auto else before, **changes)
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
    raise NoSuch(f"no service is called {name!r}: see `tidegate services`")


def _check(service: Service, wanted: ByHand) -> None:
    from tidegate.agreement.document import AgreementInvalid, parse_agreement

    least, most = 1, None
    try:
        agreed = parse_agreement(service.spec.agreement, service.spec.name).resources
        least, most = agreed.replicas_min, agreed.replicas_max
    except AgreementInvalid:
        # An invalid agreement sets no bounds; the leader reports it.
        pass
    if wrong := complaints(wanted, least, most):
        raise InvalidValue("; ".join(wrong))


async def _note(store: Store, name: str, before: ByHand, after: ByHand) -> None:
    """Record the change and its author as a decision, for `tidegate explain`."""
    if before == after:
        return
    who = _who()
    reason = told(before, after)
    change = Decision(
        at=time.time(),
        loop="http",
        service=decided_about(name),
        law=PERSON,
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
