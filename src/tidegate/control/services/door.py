"""The loop of a door process: applies what the store says to its door, and reports what it sees.

Theory of operation
-------------------

A door process has one `DoorLoop` for its service. Every _PERIOD_S it reads the service from the
store and applies it to the door:

    instances READY or DRAINING with an address ─▶ set_backends
    their free memory                           ─▶ report_free_memory, if the policy uses it
    admission limit                             ─▶ set_admission

Every _REPORT_S it also samples the door and stores the sample (`report_door`). Leaders, other doors
and the console read it there.

- An override of the service wins over what the leader has set.
- The admission limit holds for all doors of the service together; each door computes its own part
  from all doors' samples (control/services/door.py).
- A store that fails changes nothing: the door keeps its last settings. Samples are totals, so what
  was counted in the meantime is reported when the store is back.
- A setting that the door did not confirm may or may not be in effect, and is sent again.
- The door is sampled before the store is asked, so that pages and recorders of this process are
  current even if the store hangs. The time for the store is limited by _STORE_S.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, time

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.services import (
    Backend,
    Door,
    DoorSample,
    HostingStore,
    Instance,
    InstanceState,
    MemoryWeighing,
)

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
_REPORT_S = 1.0
# Seconds for all calls to the store in one turn: a store that hangs must not stop the loop.
_STORE_S = 5.0
# A value that is never a limit, so that the next turn sets the limit again.
_UNCERTAIN = -1


def backends_of(instances: Iterable[Instance], concurrency: int) -> list[Backend]:
    """Return the instances that a door uses; `concurrency` is the service's own setting."""
    found = []
    for one in instances:
        if one.state not in (InstanceState.READY, InstanceState.DRAINING) or one.address is None:
            continue
        host, _, port = one.address.rpartition(":")
        if not host or not port.isdigit():
            logger.warning("instance %d has no usable address: %r", one.instance_id, one.address)
            continue
        backend = Backend(
            instance_id=one.instance_id,
            host=host.strip("[]"),
            port=int(port),
            weight=one.weight,
            concurrency=concurrency if one.concurrency is None else one.concurrency,
            draining=one.state is InstanceState.DRAINING,
            sessions_until=one.sessions_until,
        )
        found.append(backend)
    return found


class DoorLoop:
    """Keeps one door in step with the store."""

    def __init__(
        self,
        door: Door,
        store: HostingStore,
        service: str,
        *,
        told: Callable[[DoorSample, Sequence[Instance], int], None] | None = None,
        address: str | None = None,
        clock: Callable[[], float] = monotonic,
        calendar: Callable[[], float] = time,
    ) -> None:
        self._door = door
        self._store = store
        self._service = service
        # Called with each sample, the instances and the service's concurrency, to record or show
        # them.
        self._told = told
        # The address by which others reach the door, such as the leader's probe; None means the
        # address where it listens.
        self._address = address
        self._clock = clock
        self._calendar = calendar
        self._began_at = calendar()
        self._report_at = 0.0
        self._instances: list[Instance] = []
        self._concurrency = 1
        self._backends: list[Backend] | None = None
        self._admission: int | None = None
        self._admission_by_hand: int | None = None
        self._shares = DoorShares()
        # Why the last turn could not apply the store's state; empty if it could.
        self.trouble = ""
        # The last sample, also if it could not be stored.
        self.last_sample: DoorSample | None = None

    async def run(self) -> None:
        """Run one turn after another until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(_PERIOD_S)

    async def run_once(self) -> None:
        """Run one turn; log a failure of the store or the door, which the next turn tries again."""
        try:
            # Sample first: this process shows its samples even if the store fails.
            sample = await self._sample_if_due()
            trouble: Exception | None = None
            async with asyncio.timeout(_STORE_S):
                try:
                    await self._follow()
                except (TidegateError, OSError) as failure:
                    # Report all the same: without samples the leader can decide nothing.
                    trouble = failure
                if sample is not None:
                    await self._report(sample)
            if trouble is not None:
                raise trouble
        except (TidegateError, OSError, TimeoutError) as failure:
            why = str(failure) or type(failure).__name__
            if why != self.trouble:
                logger.warning("the door of %s goes on as it is: %s", self._service, why)
            self.trouble = why
            return
        if self.trouble:
            logger.info("the door of %s follows the store again", self._service)
        self.trouble = ""

    async def _follow(self) -> None:
        services = {one.spec.name: one for one in await self._store.services()}
        service = services.get(self._service)
        self._instances = [] if service is None else await self._store.instances(self._service)
        if service is not None:
            self._instances = list(service.held(self._instances))
            self._admission_by_hand = service.by_hand.in_flight_max
        self._concurrency = 1 if service is None else service.spec.concurrency
        backends = backends_of(self._instances, self._concurrency)
        if backends != self._backends:
            # If the call fails, it may have been applied, so the next turn must send again.
            self._backends = None
            await self._door.set_backends(backends)
            self._backends = backends
        if isinstance(self._door, MemoryWeighing):
            known = {one.instance_id for one in backends}
            for one in self._instances:
                if one.instance_id in known and one.free_memory_bytes is not None:
                    self._door.report_free_memory(one.instance_id, one.free_memory_bytes)

    async def _sample_if_due(self) -> DoorSample | None:
        now = self._clock()
        if now < self._report_at:
            return None
        self._report_at = now + _REPORT_S
        sample = msgspec.structs.replace(
            await self._door.sample(), began_at=self._began_at, gives_to=self._gives_to
        )
        if self._address is not None:
            sample = msgspec.structs.replace(sample, address=self._address)
        if self.trouble and not sample.trouble:
            sample = msgspec.structs.replace(sample, trouble=self.trouble)
        self.last_sample = sample
        if self._told is not None:
            self._told(sample, self._instances, self._concurrency)
        return sample

    @property
    def _gives_to(self) -> list[int] | None:
        if self._backends is None:
            return None
        return [one.instance_id for one in self._backends if not one.draining]

    async def _report(self, sample: DoorSample) -> None:
        await self._store.report_door(sample)
        bound = self._admission_by_hand
        if bound is None:
            bound = await self._store.admission(self._service)
        # Update the shares without a limit too, so that they are known when a limit is set.
        samples = await self._store.door_samples(self._service)
        admission = self._shares.share_of(bound, samples, sample.door, self._calendar())
        if admission != self._admission:
            self._admission = _UNCERTAIN
            await self._door.set_admission(admission)
            self._admission = admission


# The part of the admission limit that each door gets, by its recent requests.
#
#     part = floor + share · (limit − floors)      share = its recent requests / those of all doors
#
# One door may have ten times the clients of another. With even parts it would reject requests while
# the part of the other door is unused. No door gets less than a floor, so that clients who move to
# a quiet door are admitted until the shares reflect them. Every door computes the parts by itself
# from the same samples. They add up to the limit, or to more if the floors of 1 need more.


# A door that has not reported for this many seconds has no part.
FRESH_S = 5.0
# Floor, as a part of an even share; it is 1 request at least.
FLOOR = 0.2
# Half-life of past requests, in seconds.
_HALF_S = 5.0


class DoorShares:
    """The recent request rates of the doors of one service."""

    def __init__(self) -> None:
        self._last: dict[str, DoorSample] = {}
        # Recent requests per second, by door.
        self._per_s: dict[str, float] = {}

    def share_of(
        self, in_flight_max: int | None, samples: Iterable[DoorSample], own: str, now: float
    ) -> int | None:
        """Return the part of the door called `own`; None if there is no limit."""
        fresh = {one.door: one for one in samples if one.at > now - FRESH_S}
        self._see(fresh)
        if in_flight_max is None:
            return None
        doors = sorted({own, *fresh})
        return door_parts(in_flight_max, {door: self._per_s.get(door, 0.0) for door in doors})[own]

    def _see(self, fresh: Mapping[str, DoorSample]) -> None:
        for door, sample in fresh.items():
            before = self._last.get(door)
            if before is not None and sample.at > before.at:
                # Totals of one door never decrease.
                interval_s = sample.at - before.at
                per_s = max(sample.accepted - before.accepted, 0) / interval_s
                known = self._per_s.get(door)
                old = 0.0 if known is None else 0.5 ** (interval_s / _HALF_S)
                self._per_s[door] = (1.0 - old) * per_s + old * (known or 0.0)
            self._last[door] = sample
        # A silent door is forgotten, and counts as a new one when it returns.
        self._last = {door: one for door, one in self._last.items() if door in fresh}
        self._per_s = {door: one for door, one in self._per_s.items() if door in fresh}


def door_parts(in_flight_max: int, asked_per_s: Mapping[str, float]) -> dict[str, int]:
    """Return the part of each door; even parts if none has requests."""
    doors = sorted(asked_per_s)
    # A part of 0 would close a door that the leader did not mean to close.
    floor = min(max(int(FLOOR * in_flight_max / len(doors)), 1), in_flight_max)
    left = max(in_flight_max - floor * len(doors), 0)
    total = math.fsum(asked_per_s.values())
    exact = {
        door: left * (asked_per_s[door] / total if total > 0.0 else 1.0 / len(doors))
        for door in doors
    }
    whole = {door: int(share) for door, share in exact.items()}
    # The remainder goes to the doors with the largest missing fraction, then by name.
    rest = sorted(doors, key=lambda door: (whole[door] - exact[door], door))
    for door in rest[: max(left - sum(whole.values()), 0)]:
        whole[door] += 1
    return {door: floor + share for door, share in whole.items()}
