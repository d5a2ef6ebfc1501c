"""The command `tidegate agreement plan`: the resources an agreement needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.exit_codes import FAILED
from tidegate.cli.learning import DataOption, warn
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import parse_duration_s, parse_rate_per_s

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.control.agreement_figures import Figures
    from tidegate.control.agreement_plan import Offer, Plan

_TAKES = [Column("takes", style="bold"), Column("how many", right=True)]
_FIGURES = [Column("from", style="bold"), Column("value", right=True), Column("known by")]
_POINTS = [Column("metric", style="bold"), Column("warns at"), Column("breaches at")]

_HEADINGS = {
    "offered": "Offered:",
    "reduced": "Offered, reduced to what there is:",
    "not known": "Asked for; whether it can be kept is not known:",
}


def plan(
    file: Annotated[Path, typer.Argument(help="A TOML document.")],
    machines: Annotated[
        int | None, typer.Option(min=0, help="How many there are. [default: as many as it takes]")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="Replicas that each takes.")] = 1,
    load: Annotated[
        str | None, typer.Option(help="What is to be served, such as 400/s. [default: promised]")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="What one replica does, such as 120/s. [default: learned]")
    ] = None,
    boot: Annotated[
        str | None, typer.Option(help="How long a machine boots, such as 90s. [default: learned]")
    ] = None,
    knowledge: Annotated[
        Path | None, typer.Option(help="What was learned. [default: from the settings]")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compute the machines, slots, replicas, warm machines and prefetch that an agreement needs.

    With --machines, report whether they suffice; the offer is then complete, reduced or refused.
    The exit code is 1 if it is refused.

    Example: `tidegate agreement plan orders.toml --machines 4 --slots 2`
    """
    from tidegate.agreement.document import read_agreement
    from tidegate.control.agreement_figures import Asked, figures
    from tidegate.control.agreement_plan import plan as plan_of
    from tidegate.control.room import Room
    from tidegate.telemetry.knowledge import Knowledge

    asked = Asked(
        load_per_s=_quantity(load, "--load", parse_rate_per_s),
        capacity_per_s=_quantity(capacity, "--capacity", parse_rate_per_s),
        boot_s=_quantity(boot, "--boot", parse_duration_s),
        slots_per_machine=slots,
        room=None if machines is None else Room.of_machines(machines, slots),
    )
    agreement = read_agreement(file)
    settings = load_settings(config, os.environ).with_data(data)
    folder = knowledge or settings.knowledge_folder
    known = figures(agreement, asked, Knowledge(folder, warn))
    found = plan_of(agreement, known, asked)
    output = Output(json)
    if json:
        output.json(_as_json(agreement, found))
    else:
        _show(agreement, found, machines, output)
    if found.offer is None:
        raise typer.Exit(FAILED)


def _quantity(said: str | None, option: str, parse: Any) -> float | None:
    if said is None:
        return None
    try:
        found = float(parse(said))
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong), param_hint=option) from None
    if found <= 0.0:
        raise typer.BadParameter("must be above 0", param_hint=option)
    return found


def _show(agreement: Agreement, found: Plan, machines: int | None, output: Output) -> None:
    warm = found.machines_warm
    output.table(
        _TAKES,
        [
            ["replicas", found.replicas],
            ["slots per machine", found.slots],
            ["machines at work", found.machines_working],
            ["machines warm", "not known" if warm is None else warm],
            ["machines there", machines],
            *([["prefetch", found.prefetch]] if found.prefetch else []),
        ],
    )
    for sentence in found.because:
        output.line(f"{sentence}.", wrap=True)
    if found.prefetch:
        rate = found.consumer_rate_per_s
        each = "" if rate is None else f" Each consumer has to take {rate:.4g}/s."
        output.line(
            f"Prefetch: keep up, so that no message waits in the hands of a consumer.{each}",
            wrap=True,
        )
    output.table(_FIGURES, _rows(found.figures))
    for sentence in found.unknown:
        output.line(f"{sentence[0].upper()}{sentence[1:]}.", wrap=True)
    for sentence in found.missing:
        output.line(f"Not enough: {sentence}.", style="bold", wrap=True)
    if found.offer is None:
        reduce = (
            ""
            if agreement.resources.insufficient == "reduce"
            else (' With insufficient = "reduce" less would be offered.')
        )
        output.line(f"Refused: {agreement.name} cannot be kept with this.{reduce}", wrap=True)
        return
    _show_offer(found, found.offer, output)


def _show_offer(found: Plan, offer: Offer, output: Output) -> None:
    from tidegate.agreement.quantity_words import worded

    output.line(_HEADINGS[found.state])
    output.table(
        _POINTS,
        [
            [one.name, worded(one.unit, one.warning), worded(one.unit, one.breach)]
            for one in offer.metrics
        ],
    )
    if offer.load_max_per_s is not None:
        output.line(f"It holds up to {offer.load_max_per_s:.4g}/s.")
    if found.state == "reduced" and offer.sla_delta_per_s2 is not None:
        output.line(f"A growth of {offer.sla_delta_per_s2:.4g}/s each second is kept up with.")


def _rows(known: Figures) -> list[list[Any]]:
    named = {
        "load a second": known.load_per_s,
        "capacity of a replica, a second": known.capacity_per_s,
        "capacity of a machine, a second": known.machine_capacity_per_s,
        "growth, a second per second": known.sla_delta_per_s2,
        "boot, seconds": known.boot_s,
    }
    return [
        [what, "not known" if one.value is None else f"{one.value:.4g}", one.origin]
        for what, one in named.items()
    ]


def _as_json(agreement: Agreement, found: Plan) -> dict[str, Any]:
    offer = found.offer
    return {
        "agreement": agreement.name,
        "state": found.state,
        "replicas": found.replicas,
        "slots_per_machine": found.slots,
        "machines_working": found.machines_working,
        "machines_warm": found.machines_warm,
        "prefetch": found.prefetch,
        "consumer_rate_per_s": found.consumer_rate_per_s,
        "figures": {
            name: {"value": one.value, "origin": one.origin}
            for name, one in vars(found.figures).items()
        },
        "because": found.because,
        "unknown": found.unknown,
        "missing": found.missing,
        "offer": None
        if offer is None
        else {
            "metrics": [
                {"metric": one.name, "warning": one.warning, "breach": one.breach}
                for one in offer.metrics
            ],
            "load_max_per_s": offer.load_max_per_s,
            "sla_delta_per_s2": offer.sla_delta_per_s2,
        },
    }
