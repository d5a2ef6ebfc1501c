"""What is said about a plant: how fast replicas are, how long machines boot, what goes wrong."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from tidegate.core.replication import Role

_Above0 = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
_From0 = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Part = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class FaultKind(enum.StrEnum):
    """What goes wrong on purpose."""

    MACHINE = "machine"  # a machine dies, and its replicas with it until they have another place
    REPLICA = "replica"  # a replica's process dies and is started again on its machine
    STALE = "stale"  # measurements stop; the loop sees the last ones, older and older
    NAN = "nan"  # measurements hold numbers that are none
    SLOW = "slow"  # every replica delivers half of what it did


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    at_s: float
    kind: FaultKind
    # For how long, where it is no single moment.
    duration_s: float = 60.0


class ClientChange(msgspec.Struct, frozen=True, kw_only=True):
    """Clients come to the queue, or leave it."""

    at_s: float
    role: Role
    # Below 0: they leave.
    count: int = 1


class PlantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated world. Times in seconds, rates in messages a second."""

    # What a replica with its workers delivers, where the trace does not say.
    capacity_per_s: _Above0 = 100.0
    # Messages in a replica's workers' hands at once.
    in_service_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    # From a free slot to serving.
    start_s: _From0 = 1.0
    boot_s: _From0 = 96.9
    # The standard deviation of boots, as a part of their mean (log-normal); 0: all alike.
    boot_spread: _Part = 0.0
    # The part of boots that fail at their end.
    boot_failure: _Part = 0.0
    machines_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    # Machines that run when it begins.
    machines_at_start: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    # Whether arrivals are a Poisson process; else they come evenly.
    poisson: bool = True
    # The longest step of the plant's own clock.
    tick_s: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    # Until a dead machine is noticed, and a dead replica's process runs again.
    detection_s: _From0 = 3.0
    restart_s: _From0 = 2.0
    # Whether replicas are consumers of one queue, as where KEDA scales: shares do nothing then.
    competing: bool = False
    # Of policy "clients": what one consumer takes away.
    consumer_per_s: _Above0 = 50.0
