"""The fleet as the settings define it: the provider of machines, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import Provisioning

if TYPE_CHECKING:
    from tidegate.cli.settings.settings import Settings
    from tidegate.core.fleet import Provider
    from tidegate.fleet.fleet import Fleet, FleetOptions, OrderStore
    from tidegate.fleet.providers.process import ProcessProvider
    from tidegate.telemetry.recorder import Recorder

# The time a machine needs to stop in addition to its workers' drain: its node and its last reports.
_GOODBYE_S = 30.0


def fleet_of(
    settings: Settings,
    store: OrderStore,
    store_urls: Sequence[str],
    recorder: Recorder | None = None,
    config: Path | None = None,
) -> Fleet | None:
    """Return the fleet of the settings; None if there is no provider of machines."""
    from tidegate.fleet.fleet import Fleet

    provider = provider_of(settings, store_urls, config)
    return None if provider is None else Fleet(store, provider, options_of(settings), recorder)


def options_of(settings: Settings) -> FleetOptions:
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


def provider_of(
    settings: Settings, store_urls: Sequence[str], config: Path | None
) -> Provider | None:
    chosen = settings.fleet
    if chosen.provider == "process":
        return process_provider(settings, store_urls, config)
    if chosen.provider == "none":
        return None
    from tidegate.fleet.command_template import CommandTemplate
    from tidegate.fleet.providers.command import CommandProvider

    if chosen.boot is None or chosen.halt is None or chosen.listing is None:
        raise InvalidValue("the provider command needs fleet.boot, fleet.halt and fleet.list")
    return CommandProvider(
        CommandTemplate(chosen.boot),
        CommandTemplate(chosen.halt),
        CommandTemplate(chosen.listing),
        fleet=chosen.name,
        store_urls=store_urls,
        folder=fleet_folder(settings),
        boot_deadline_s=chosen.command_deadline_s,
        halt_deadline_s=chosen.command_deadline_s,
        list_deadline_s=chosen.list_deadline_s,
    )


def process_provider(
    settings: Settings, store_urls: Sequence[str], config: Path | None
) -> ProcessProvider:
    from tidegate.fleet.providers.process import ProcessProvider

    data = settings.store.data_folder.resolve()
    return ProcessProvider(
        fleet_folder(settings),
        boot_s=settings.fleet.boot_s,
        halt_s=settings.fleet.drain_s + _GOODBYE_S,
        store_urls=store_urls,
        environment={
            "TIDEGATE_STORE__DATA": str(data),
            "TIDEGATE_TELEMETRY__LAKE": settings.telemetry.lake or str(data / "lake"),
        },
        arguments=() if config is None else ("--config", str(config.resolve())),
    )


def fleet_folder(settings: Settings) -> Path:
    """Return the folder with the records of machines on this computer."""
    return settings.store.data_folder.resolve() / "fleet"
