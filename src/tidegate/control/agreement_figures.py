"""The figures that a plan is made from, each with its origin.

A value that the user gives with the request counts most. Capacities and boot times are facts: there
a learned value wins over the agreement's. The growth to keep up with is a promise: there the
agreement wins over the learned value. Loops with an agreement use the same order
(docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate.agreement.document import Agreement
from tidegate.control.room import Room
from tidegate.telemetry.knowledge import Model

ASKED = "said with the question"
SAID = "said in the agreement"
_FLEET = "fleet"


@dataclass(frozen=True)
class Figure:
    """A number with its origin; without a value, `origin` says how to provide one."""

    value: float | None
    origin: str

    @property
    def is_known(self) -> bool:
        return self.value is not None


class Accepted(Protocol):
    """A source of accepted models: the knowledge folder, or what the loops have read of it."""

    def accepted(self, kind: str) -> Mapping[str, Model]: ...


@dataclass(frozen=True)
class Asked:
    """Values that the user gives with the request."""

    load_per_s: float | None = None
    capacity_per_s: float | None = None
    boot_s: float | None = None
    slots_per_machine: int = 1
    # Instances kept ready in addition to those that serve.
    spares: int = 0
    # The available slots; None means unlimited.
    room: Room | None = None


@dataclass(frozen=True)
class Figures:
    """All figures of a plan."""

    # The load to be served without a warning.
    load_per_s: Figure
    # Of one replica with its workers.
    capacity_per_s: Figure
    # Of a machine with all slots in use.
    machine_capacity_per_s: Figure
    sla_delta_per_s2: Figure
    boot_s: Figure
    # Consumers with which a replica has its largest capacity.
    consumers: Figure


def figures(agreement: Agreement, asked: Asked, knowledge: Accepted | None) -> Figures:
    """Return the figures for an agreement from the request, the models and the agreement."""
    queue = None if knowledge is None else _capacity(agreement, knowledge)
    fleet = None if knowledge is None else knowledge.accepted("provisioning").get(_FLEET)
    uses = agreement.resources
    capacity = capacity_of(agreement, asked.capacity_per_s, queue)
    filled = capacity.value and capacity.value * asked.slots_per_machine
    return Figures(
        load_per_s=_load(agreement, asked),
        capacity_per_s=capacity,
        machine_capacity_per_s=_first(
            _learned(fleet, "machine_capacity_per_s"),
            (filled, f"{asked.slots_per_machine} slot(s) of it, {capacity.origin}"),
            unknown="it follows from a replica's capacity",
        ),
        sla_delta_per_s2=_first(
            (uses.sla_delta_per_s2, SAID),
            _learned(fleet, "sla_delta"),
            unknown="say `sla_delta`, or let `tidegate learn` see the load grow",
        ),
        boot_s=_first(
            (asked.boot_s, ASKED),
            _learned(fleet, "boot_s"),
            unknown="say --boot, or let `tidegate learn` see machines boot",
        ),
        consumers=_first(
            _learned(queue, "best_consumers"), unknown="`tidegate learn` finds it of queues"
        ),
    )


def capacity_of(agreement: Agreement, said_per_s: float | None, learned: Model | None) -> Figure:
    """Return the capacity of one replica: the user's value, the learned one, or the agreement's."""
    return _first(
        (said_per_s, ASKED),
        _learned(learned, "throughput_per_s"),
        (agreement.resources.capacity_per_s, SAID),
        unknown="say `capacity`, or --capacity; `tidegate learn` finds it of what was at its limit",
    )


def _load(agreement: Agreement, asked: Asked) -> Figure:
    promised = next((one for one in agreement.metrics if one.name == "throughput"), None)
    return _first(
        (asked.load_per_s, ASKED),
        (None if promised is None else promised.warning, "the throughput's warning point"),
        (agreement.resources.load_max_per_s, "the load up to which it is kept"),
        unknown="promise a throughput, or say `load_max`, or --load",
    )


def _capacity(agreement: Agreement, knowledge: Accepted) -> Model | None:
    """Return the learned capacity: of a queue's replica, or of an HTTP service's instance."""
    if agreement.http is not None:
        return knowledge.accepted("http_capacity").get(agreement.http)
    return _careful(agreement, knowledge.accepted("capacity"))


def _careful(agreement: Agreement, learned: Mapping[str, Model]) -> Model | None:
    """Return the model of the governed queue with the lowest capacity, as the safe choice."""
    governed = [
        model
        for queue, model in learned.items()
        if agreement.governs_queue(queue) and model.parameters.get("throughput_per_s", 0.0) > 0.0
    ]
    return min(governed, key=lambda model: model.parameters["throughput_per_s"], default=None)


def _learned(model: Model | None, parameter: str) -> tuple[float | None, str]:
    if model is None:
        return None, ""
    return model.parameters.get(parameter), f"learned of {model.subject}"


def _first(*said: tuple[float | None, str], unknown: str) -> Figure:
    for value, origin in said:
        if value is not None and math.isfinite(value) and value >= 0.0:
            return Figure(value, origin)
    return Figure(None, unknown)
