"""Settings of the simulated plant: the speed of replicas, boot times, and faults."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from tidegate.core.replication import Role

_Above0 = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
_From0 = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Part = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class FaultKind(enum.StrEnum):
    """The kinds of faults."""

    MACHINE = "machine"  # a machine dies; its replicas are down until they have another slot
    REPLICA = "replica"  # a replica's process dies and restarts on its machine
    STALE = "stale"  # measurements stop; the loop reads the last ones with growing age
    NAN = "nan"  # measurements contain NaN
    SLOW = "slow"  # every replica delivers half of its normal rate


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault."""

    at_s: float
    kind: FaultKind
    # Duration of faults that last.
    duration_s: float = 60.0


class ClientChange(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that join or leave the queue."""

    at_s: float
    role: Role
    # Below 0 they leave.
    count: int = 1


class PlantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated environment. Times in seconds, rates in messages per second."""

    # Rate of a replica with its workers, if the trace does not set it.
    capacity_per_s: _Above0 = 100.0
    # Messages that a replica's workers hold at once.
    in_service_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    # Time from a free slot to serving.
    start_s: _From0 = 1.0
    boot_s: _From0 = 96.9
    # Standard deviation of boot times as a fraction of their mean (log-normal). 0 means all alike.
    boot_spread: _Part = 0.0
    # Fraction of the boots that fail at their end.
    boot_failure: _Part = 0.0
    machines_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    # Machines that run at the start.
    machines_at_start: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    # Whether arrivals are a Poisson process; otherwise they are evenly spaced.
    poisson: bool = True
    # The longest step of the plant's clock.
    tick_s: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    # Time until a dead machine is noticed, and until a dead replica's process runs again.
    detection_s: _From0 = 3.0
    restart_s: _From0 = 2.0
    # Whether replicas are consumers of one queue, as with KEDA. Shares then have no effect.
    competing: bool = False
    # With policy "clients": the rate of one consumer.
    consumer_per_s: _Above0 = 50.0
