"""The section [fleet], with a check of the commands it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from tidegate.cli.settings.field import Between, CommandText, Duration
from tidegate.core.complaint import shown

_COMMANDS_DO = {
    "boot": "boots machine {id}",
    "halt": "ends machine {id}",
    "list": "prints the machines that there are",
}


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The provider of machines, and its time limits."""

    # "process" runs machines as processes on this computer; "command" runs the commands below.
    provider: Literal["none", "process", "command"] = "none"
    # Distinguishes fleets of one cloud; available as {fleet} in the commands.
    name: str = "tidegate"
    boot: Annotated[str | None, CommandText] = None
    halt: Annotated[str | None, CommandText] = None
    listing: Annotated[str | None, CommandText] = msgspec.field(default=None, name="list")
    # Time limits of a boot or halt command, and of a list command.
    command_deadline_s: Annotated[Duration, Between(0.1, 3600.0)] = msgspec.field(
        default=120.0, name="command_deadline"
    )
    list_deadline_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=15.0, name="list_deadline"
    )
    list_interval_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=2.0, name="list_interval"
    )
    # Attempts of one boot or halt; the wait between them doubles.
    tries: Annotated[int, Between(1, 20)] = 4
    backoff_s: Annotated[Duration, Between(0.01, 60.0)] = msgspec.field(default=1.0, name="backoff")
    # From the order of a machine until its node joins.
    boot_deadline_s: Annotated[Duration, Between(0.5, 86_400.0)] = msgspec.field(
        default=300.0, name="boot_deadline"
    )
    # How long a machine may be without a live node before it is treated as lost.
    lost_s: Annotated[Duration, Between(0.1, 3600.0)] = msgspec.field(default=3.0, name="lost")
    # How long a worker may take to finish the messages it has begun.
    drain_s: Annotated[Duration, Between(0.0, 86_400.0)] = msgspec.field(default=30.0, name="drain")
    # The provider "process" waits this long, to simulate the boot time of a cloud machine.
    boot_s: Annotated[float, Between(0.0, 86_400.0)] = 0.0
    # Slots per machine, unless the queue sets its own number.
    slots: Annotated[int, Between(1, 1000)] = 1
    # The hosts for machines, if the commands contain {host}.
    hosts: list[str] = []
    # The limit per host; 0 means no limit.
    machines_per_host: Annotated[int, Between(0, 10_000)] = 0
    machines_max: Annotated[int, Between(1, 10_000)] = 64
    # Booted machines kept without work, unless a queue sets its own number; None means the learned
    # number.
    warm: Annotated[int | None, Between(0, 1000)] = None
    provisioning: Literal["energy", "performance"] = "energy"


def fleet_complaints(fleet: dict[str, Any], written: set[str]) -> Iterator[str]:
    """Yield the problems of the section as a whole; `written` are its keys with any value."""
    if fleet.get("provider") == "command":
        yield from _missing(fleet, written)
    elif given := [key for key in _COMMANDS_DO if key in fleet]:
        yield f'fleet.{given[0]} is set, but nobody runs it: set fleet.provider = "command"'


def _missing(fleet: dict[str, Any], written: set[str]) -> Iterator[str]:
    """Yield a problem for each missing command, and for each one without {id}."""
    for key, does in _COMMANDS_DO.items():
        if key not in written:
            yield (
                f'fleet.{key} is not set: with provider = "command" it is the command that {does}'
            )
    from tidegate.fleet.command_template import CommandTemplate

    for key in ("boot", "halt"):
        if key in fleet and "id" not in CommandTemplate(fleet[key]).placeholders:
            yield (
                f"fleet.{key} = {shown(fleet[key])}: {{id}} is missing: without it the "
                f"command does not know which machine it {_COMMANDS_DO[key].split()[0]}"
            )
