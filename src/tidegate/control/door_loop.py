"""The loop of a door process: what the store wants becomes what the door does, four times a second.

    instances READY or DRAINING with an address ─▶ set_backends      admission ─▶ set_admission
    what they may still take of memory ─▶ report_free_memory, where policies know it
    door.sample() ─▶ report_door, each second

A store that does not answer changes nothing: the door goes on with what it was told last, and what
it has counted is reported when the store is back, since counts are totals. What a person has said
about the service goes before what the leader has set. Admission is one bound
for all doors of the service; each takes its part by what it was asked for (control/door_share.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, time

import msgspec

from tidegate.control.door_share import DoorShares
from tidegate.core.errors import TidegateError
from tidegate.core.hosting import (
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
# A store that hangs is as bad as one that is away, and must not keep us from looking again.
_STORE_S = 5.0
# No admission that a door is ever given.
_UNCERTAIN = -1


def backends_of(instances: Iterable[Instance], concurrency: int) -> list[Backend]:
    """Who is to get requests, or has some; `concurrency` is the service's own."""
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
        # Whoever records or shows samples, with the instances and the service's own concurrency.
        self._told = told
        # Where others reach it, the leader's probe among them; None: where it listens.
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
        # Why the last turn changed nothing; "": it did what the store says.
        self.trouble = ""
        # What was reported last, or would have been; for whoever shows it.
        self.last_sample: DoorSample | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(_PERIOD_S)

    async def run_once(self) -> None:
        """One turn; whatever the store or the door has against it is said and tried again."""
        try:
            # First, and for those here whatever the store does: it is no reason to be blind.
            sample = await self._sample_if_due()
            trouble: Exception | None = None
            async with asyncio.timeout(_STORE_S):
                try:
                    await self._follow()
                except (TidegateError, OSError) as failure:
                    # What it sees is said all the same: a leader that hears nothing does nothing.
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
            # What it does not confirm it may have done: then also the former ones are said anew.
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
        # Also without a bound: when there is one, it is known at once what each was asked for.
        samples = await self._store.door_samples(self._service)
        admission = self._shares.part(bound, samples, sample.door, self._calendar())
        if admission != self._admission:
            self._admission = _UNCERTAIN
            await self._door.set_admission(admission)
            self._admission = admission
