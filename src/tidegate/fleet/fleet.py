"""The machines of a fleet, over a store and a provider.

Theory of operation
-------------------

The leader uses a `Fleet` to order machines and to compare three views of them: the rows in the
store, the provider's list, and the nodes that are alive.

    boot    row (booting) → provider, retried with backoff → its node joins → warm or up
                                    └ all tries failed → failed, with the provider's reason
    halt    row (halting) → provider, retried with backoff → row removed

Every order is first written as a row under the leader's epoch, and only then sent to the provider.
If the leader dies in between, the next one finds the row and continues (`reconcile`). If the leader
was deposed, the store rejects the row, and nothing has been ordered.

`reconcile` runs once per period of the machine loop and decides for each row:

    halting, not listed by the provider      remove the row
    halting, else                            halt it (again)
    failed, still listed                     halt it: it may come back although it was replaced
    node alive                               warm, or up if any slot is in use
    booting, beyond the deadline             failed
    booting, not booted by this leader       boot it, if the provider does not list it
    running, node lost, ended at provider    stopped in good order: halt it; else failed
    running, node lost for `lost_s`          failed

A failed machine gives up its replicas and instances, so that the provisioner places them elsewhere.
A listed machine without a row was not ordered by any leader, and is halted.

- A machine runs if its node is alive, no matter what the provider reports.
- If the provider cannot be asked, its last list is no longer used. Only lost nodes and deadlines
  change a state then.
- There is at most one background task per machine. A task that fails logs it, and the next
  `reconcile` starts it again.
- After failed boots no machine is ordered for a time that doubles with each failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from tidegate.core.decisions import MachineSample
from tidegate.core.errors import LimitReached, RetryLater, StaleEpoch, TidegateError, Unavailable
from tidegate.core.machines import (
    FleetStore,
    Machine,
    MachineInfo,
    MachineState,
    Provider,
    machine_detail,
)
from tidegate.core.runtime import cancel_and_wait, crash_point
from tidegate.core.services import HostingStore, Instance, InstanceState
from tidegate.core.text import format_duration
from tidegate.core.topology import Provisioning, ReplicaState, ReplicationStore, Topology
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

RUNNING = (MachineState.WARM, MachineState.UP)
# States in which the provider's machines no longer run.
ENDED = ("halted", "stopped")
# The longest wait, in seconds, before another machine is ordered after failed boots.
_NO_BOOT_S_MAX = 300.0
_DOUBLINGS_MAX = 16


class LeaderStore(FleetStore, ReplicationStore, HostingStore, Protocol):
    """The parts of the store that the leader needs."""


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits and sizes of a fleet."""

    # Seconds from the order of a machine until its node must have joined.
    boot_deadline_s: float = 300.0
    # Attempts of one boot, and the wait between them, which doubles each time.
    tries: int = 4
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    # Seconds without a living node after which a machine has failed.
    lost_s: float = 3.0
    # Seconds between two lists of the provider.
    list_s: float = 2.0
    machines_max: int = 256
    # Hosts on which machines may run; empty if the provider chooses.
    hosts: list[str] = []
    # Machines per host at most; 0 means unlimited.
    machines_per_host: int = 0
    provisioning: Provisioning = Provisioning.ENERGY
    # Failed machines are shown for this time, and not more than this number.
    failed_kept_s: float = 600.0
    failed_max: int = 20

    @property
    def machines_most(self) -> int:
        """Machines that may exist at most, on all hosts together."""
        if not (self.hosts and self.machines_per_host):
            return self.machines_max
        return min(self.machines_max, len(self.hosts) * self.machines_per_host)


class Fleet:
    """The machines of the cluster, as the leader controls them."""

    def __init__(
        self,
        store: LeaderStore,
        provider: Provider,
        options: FleetOptions | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.provider = provider
        # Why the provider cannot be asked now; empty if it can.
        self.trouble = ""
        # Why the last ordered machine never ran; empty if it did.
        self.boot_trouble = ""
        # Failed boots in a row, and until when no other machine is ordered.
        self._failed_boots = 0
        self._no_boot_until = float("-inf")
        self._store = store
        self._options = options or FleetOptions()
        self._recorder = recorder
        # At most one background task per machine.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._listed: dict[int, Machine] | None = None
        self._listed_at = float("-inf")
        # When this leader first saw a machine in a state, by the monotonic clock.
        self._booting_since: dict[int, float] = {}
        self._booted_at: dict[int, float] = {}
        self._lost_since: dict[int, float] = {}
        self._failed_since: dict[int, float] = {}

    @property
    def machines_most(self) -> int:
        """Machines that may exist at most."""
        return self._options.machines_most

    # Commands to the provider

    async def boot(self, slots: int, host: str | None, leader_epoch: int) -> MachineInfo:
        """Order a machine; it is booting when this returns, and later joins or fails.

        Raises `LimitReached` if there are too many machines, `Unavailable` after failed boots, and
        `StaleEpoch`.
        """
        rows = await self._store.machines()
        count = sum(map(self._may_run, rows))
        if count >= self._options.machines_max:
            raise LimitReached(
                f"{count} machines are the most (fleet.machines_max): none is booted"
            )
        if time.monotonic() < self._no_boot_until:
            raise Unavailable(
                f"{self._failed_boots} machines could not be booted, another is tried in a while: "
                f"{self.boot_trouble}"
            )
        # The configured hosts win: a law only knows hosts that have a machine already.
        host = self._host_for(rows) if self._options.hosts else host
        crash_point("before-boot-row")
        row = await self._store.add_machine(self.provider.name, slots, host, leader_epoch)
        crash_point("after-boot-row")
        log.info("machine ordered", extra={"machine": row.machine_id, "slots": slots, "host": host})
        self._booting_since[row.machine_id] = time.monotonic()
        self._begin(row.machine_id, self._boot(row, leader_epoch))
        return row

    def _may_run(self, row: MachineInfo) -> bool:
        """Return whether a machine counts; a failed one does while the provider lists it."""
        listed = (self._listed or {}).get(row.machine_id)
        is_left = listed is not None and listed.state not in ENDED
        return row.state is not MachineState.FAILED or is_left

    def _host_for(self, rows: list[MachineInfo]) -> str | None:
        """Return the host of the next machine: the fullest or the emptiest; None without hosts.

        Raises `LimitReached` if all hosts are full.
        """
        if not self._options.hosts:
            return None
        counts = dict.fromkeys(self._options.hosts, 0)
        for row in rows:
            if row.host in counts and self._may_run(row):
                counts[row.host] += 1
        most = self._options.machines_per_host or math.inf
        with_room = [host for host, count in counts.items() if count < most]
        if not with_room:
            raise LimitReached(
                f"each of {len(counts)} hosts has its {most} machines (fleet.machines_per_host)"
            )
        if self._options.provisioning is Provisioning.PERFORMANCE:
            return min(with_room, key=lambda host: counts[host])
        return max(with_room, key=lambda host: counts[host])

    async def halt(self, machine_id: int, leader_epoch: int, why: str = "") -> bool:
        """Order the end of a machine; return False if it does not exist."""
        crash_point("before-halt-row")
        if not await self._store.set_machine_state(
            machine_id, MachineState.HALTING, leader_epoch, why
        ):
            return False
        crash_point("after-halt-row")
        log.info("machine halts", extra={"machine": machine_id, "why": why})
        self._replace(machine_id, self._halt(machine_id, leader_epoch))
        return True

    async def samples(self) -> list[MachineSample]:
        """Return the machines as the provisioner needs them."""
        rows, taken = await self._store.machines(), await self._occupancy()
        return [
            MachineSample(
                machine_id=row.machine_id,
                state=row.state,
                slots=row.slots,
                used=taken.used[row.machine_id],
                draining=taken.draining[row.machine_id],
                host=row.host,
                added_at=float(row.machine_id),
            )
            for row in rows
        ]

    async def _occupancy(self) -> Occupancy:
        return Occupancy(await self._store.topologies(), await self._store.instances())

    async def reset(self) -> None:
        """Cancel background tasks and forget everything; the next leader continues."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        await cancel_and_wait(tasks)
        for memory in self._memories:
            memory.clear()
        self._boots_work()
        self._listed, self._listed_at = None, float("-inf")

    async def close(self) -> None:
        await self.reset()
        await self.provider.close()

    @property
    def _memories(self) -> tuple[dict[int, float], ...]:
        return self._booting_since, self._booted_at, self._lost_since, self._failed_since

    # Reconciling

    async def reconcile(self, leader_epoch: int) -> list[MachineInfo]:
        """Compare rows, the provider's list and living nodes; return the rows afterwards.

        Raises `StaleEpoch` if this node no longer leads.
        """
        # List before reading the rows: a listed machine then has its row, or its row has been
        # removed.
        is_fresh = await self._list()
        rows = await self._store.machines()
        used = (await self._occupancy()).used
        for row in rows:
            await self._poll_machine(row, used[row.machine_id], leader_epoch)
        known = {row.machine_id for row in rows}
        if is_fresh:
            self._halt_strangers(known)
        for memory in self._memories:
            for number in memory.keys() - known:
                del memory[number]
        await self._forget_failed(rows, leader_epoch)
        return await self._store.machines()

    async def _poll_machine(self, row: MachineInfo, used: int, leader_epoch: int) -> None:
        number = row.machine_id
        listed = None if self._listed is None else self._listed.get(number)
        is_gone = self._listed is not None and (listed is None or listed.state in ENDED)
        if row.state is MachineState.HALTING:
            if listed is None and is_gone and number not in self._tasks:
                # Another process has halted it, so only the row is left.
                await self._store.remove_machine(number, leader_epoch)
            else:
                self._begin(number, self._halt(number, leader_epoch))
        elif row.state is MachineState.FAILED:
            self._failed_since.setdefault(number, time.monotonic())
            if used:
                # The leader that marked it as failed died before it had taken its work away.
                await self._unload(number, leader_epoch)
            if listed is not None and listed.state not in ENDED:
                # It may come back, although its work was given to other machines.
                self._begin(number, self._put_away(number))
        elif row.alive:
            await self._poll_running(row, used, leader_epoch)
        elif row.state is MachineState.BOOTING:
            await self._poll_booting(row, is_gone, listed, leader_epoch)
        else:
            lost_s = time.monotonic() - self._lost_since.setdefault(number, time.monotonic())
            if listed is not None and listed.state == "stopped":
                # Its keeper stopped it in good order, so this is no failure.
                await self.halt(number, leader_epoch, "it was stopped")
            elif is_gone:
                words = f": {listed.detail}" if listed is not None and listed.detail else ""
                await self._fail(row, f"it died{words}", leader_epoch)
            elif lost_s >= self._options.lost_s:
                gone_s = format_duration(self._options.lost_s)
                await self._fail(row, f"its node did not come back within {gone_s}", leader_epoch)

    async def _poll_booting(
        self,
        row: MachineInfo,
        is_gone: bool,
        listed: Machine | None,
        leader_epoch: int,
    ) -> None:
        number = row.machine_id
        now = time.monotonic()
        # Ordered before this node led: use the wall clock of the order once.
        since = self._booting_since.setdefault(number, now - max(time.time() - row.ordered_at, 0.0))
        if now - since > self._options.boot_deadline_s:
            waited = format_duration(self._options.boot_deadline_s)
            said = f"; last: {row.detail}" if row.detail else ""
            await self._fail(row, f"it did not join within {waited}{said}", leader_epoch)
        elif number not in self._booted_at:
            if is_gone:
                # The leader that ordered it may have died before it had asked the provider.
                self._begin(number, self._boot(row, leader_epoch))
        elif (
            listed is not None
            and listed.state == "halted"
            # The list must be newer than the boot, or it shows the machine before it.
            and self._listed_at > self._booted_at[number]
        ):
            await self._fail(row, f"it ended while it booted: {listed.detail}", leader_epoch)

    async def _poll_running(self, row: MachineInfo, used: int, leader_epoch: int) -> None:
        self._lost_since.pop(row.machine_id, None)
        if self._booting_since.pop(row.machine_id, None) is not None:
            self._boots_work()
            took_s = None if row.joined_at is None else max(row.joined_at - row.ordered_at, 0.0)
            self._record("boot", row, took_s)
            log.info("machine runs", extra={"machine": row.machine_id, "boot_s": took_s})
        state = MachineState.UP if used else MachineState.WARM
        if row.state is not state:
            await self._store.set_machine_state(row.machine_id, state, leader_epoch, row.detail)

    async def _fail(self, row: MachineInfo, why: str, leader_epoch: int) -> None:
        """Mark a machine as failed, take its work away, and make sure that it is halted."""
        detail = machine_detail(why)
        await self._store.set_machine_state(
            row.machine_id, MachineState.FAILED, leader_epoch, detail
        )
        log.error("machine failed", extra={"machine": row.machine_id, "why": detail})
        if row.state is MachineState.BOOTING:
            self._boot_failed(detail)
        self._record("machine_failed", row, None, why=detail)
        await self._unload(row.machine_id, leader_epoch)
        self._replace(row.machine_id, self._put_away(row.machine_id))

    async def _unload(self, machine_id: int, leader_epoch: int) -> None:
        """Take replicas and instances from a lost machine, so that they are placed again."""
        for topology in await self._store.topologies():
            for place in topology.replicas:
                if place.machine_id == machine_id:
                    await self._store.assign_replica(
                        topology.queue_id, place.number, None, leader_epoch
                    )
        for instance in await self._store.instances():
            if instance.machine_id != machine_id:
                continue
            if instance.state is InstanceState.DRAINING:
                # A draining instance has no requests left to answer.
                await self._store.remove_instance(instance.instance_id, leader_epoch)
            elif instance.state is not InstanceState.FAILED:
                await self._store.set_instance(
                    instance.instance_id,
                    leader_epoch,
                    state=InstanceState.ORDERED,
                    detail=f"machine {machine_id} is gone",
                )

    def _boot_failed(self, why: str) -> None:
        """Delay the next order after a failed boot, doubling each time up to _NO_BOOT_S_MAX.

        A provider without quota must not be asked every second.
        """
        self._failed_boots += 1
        doublings = min(self._failed_boots, _DOUBLINGS_MAX)
        wait_s = min(self._options.backoff_s * 2.0**doublings, _NO_BOOT_S_MAX)
        self._no_boot_until = time.monotonic() + wait_s
        self.boot_trouble = why

    def _boots_work(self) -> None:
        self._failed_boots, self._no_boot_until, self.boot_trouble = 0, float("-inf"), ""

    def _halt_strangers(self, wanted: set[int]) -> None:
        for number, machine in (self._listed or {}).items():
            if number not in wanted and machine.state not in ENDED:
                log.warning("a machine that nobody ordered is halted", extra={"machine": number})
                self._begin(number, self._put_away(number))

    async def _forget_failed(self, rows: list[MachineInfo], leader_epoch: int) -> None:
        """Remove rows of failed machines that are too old or too many."""
        failed = [row for row in rows if row.state is MachineState.FAILED]
        failed.sort(key=lambda row: -row.machine_id)
        now = time.monotonic()
        for index, row in enumerate(failed):
            since = self._failed_since.get(row.machine_id, now)
            is_old = now - since > self._options.failed_kept_s
            if (is_old or index >= self._options.failed_max) and row.machine_id not in self._tasks:
                await self._store.remove_machine(row.machine_id, leader_epoch)

    async def _list(self) -> bool:
        """List the provider's machines if it is time; return whether the list is new.

        If the provider fails, the old list is dropped.
        """
        now = time.monotonic()
        if now - self._listed_at < self._options.list_s:
            return False
        self._listed_at = now
        try:
            machines = await self.provider.list()
        except RetryLater as failure:
            if self.trouble != str(failure):
                log.error("the provider does not say what runs: %s", failure)
            self.trouble, self._listed = str(failure), None
            return False
        self.trouble = ""
        self._listed = {machine.machine_id: machine for machine in machines}
        return True

    # Background tasks

    async def _boot(self, row: MachineInfo, leader_epoch: int) -> None:
        """Ask the provider to boot a machine, with retries; its node then joins by itself."""
        number = row.machine_id

        async def failed(attempt: int, failure: RetryLater) -> None:
            detail = f"boot {attempt} of {self._options.tries}: {failure}"
            await self._store.set_machine_state(number, MachineState.BOOTING, leader_epoch, detail)

        def boot() -> Awaitable[Machine]:
            return self.provider.boot(number, row.slots, row.host)

        try:
            crash_point("before-boot")
            await self._try("boot", number, boot, failed)
            crash_point("after-boot")
        except RetryLater as failure:
            await self._fail(row, f"it could not be booted: {failure}", leader_epoch)
        else:
            self._booted_at[number] = time.monotonic()
        # The current list does not contain the machine yet, so request a new one.
        self._listed_at = float("-inf")

    async def _halt(self, machine_id: int, leader_epoch: int) -> None:
        begun = time.monotonic()

        async def failed(attempt: int, failure: RetryLater) -> None:
            detail = f"halt {attempt} of {self._options.tries}: {failure}"
            await self._store.set_machine_state(
                machine_id, MachineState.HALTING, leader_epoch, detail
            )

        try:
            crash_point("before-halt")
            await self._try("halt", machine_id, lambda: self.provider.halt(machine_id), failed)
            crash_point("after-halt")
        except RetryLater as failure:
            # It stays in the state halting and may cost money, so log every failure and retry.
            log.error("machine %d cannot be halted: %s", machine_id, failure)
            return
        was_known = await self._store.remove_machine(machine_id, leader_epoch)
        crash_point("after-machine-removed")
        # An older `reconcile` may have started a second halt; record only the first.
        if was_known and self._recorder is not None:
            self._recorder.event(
                "halt",
                f"machine {machine_id}",
                at_s=time.time(),
                duration_s=time.monotonic() - begun,
            )
        self._listed_at = float("-inf")

    async def _put_away(self, machine_id: int) -> None:
        """Halt a machine that is no longer wanted; its row does not change."""
        await self._try("halt", machine_id, lambda: self.provider.halt(machine_id), None)
        self._listed_at = float("-inf")

    async def _try(
        self,
        what: str,
        machine_id: int,
        call: Callable[[], Awaitable[object]],
        failed: Callable[[int, RetryLater], Awaitable[None]] | None,
    ) -> None:
        """Call the provider until it succeeds; raise its error after the last attempt."""
        wait_s = self._options.backoff_s
        for attempt in range(1, self._options.tries + 1):
            try:
                await call()
                return
            except RetryLater as failure:
                log.warning(
                    "%s of machine %d failed: %s",
                    what,
                    machine_id,
                    failure,
                    extra={"attempt": attempt, "tries": self._options.tries},
                )
                if failed is not None:
                    await failed(attempt, failure)
                if attempt == self._options.tries:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, self._options.backoff_max_s)

    def _begin(self, machine_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task for a machine, unless one is running."""
        if machine_id in self._tasks:
            work.close()
            return
        task = asyncio.create_task(self._worked(machine_id, work))
        self._tasks[machine_id] = task

    def _replace(self, machine_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task for a machine, instead of the one that is running."""
        before = self._tasks.pop(machine_id, None)
        if before is not None and before is not asyncio.current_task():
            before.cancel()
        self._begin(machine_id, work)

    async def _worked(self, machine_id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StaleEpoch:
            log.warning("another leads: machine %d is left to it", machine_id)
        except TidegateError as failure:
            log.error("%s", failure, extra={"machine": machine_id})
        except Exception:
            log.exception("work for machine %d failed", machine_id)
            # A bug would fail again at once, so delay the next attempt.
            await asyncio.sleep(self._options.backoff_max_s)
        finally:
            if self._tasks.get(machine_id) is asyncio.current_task():
                del self._tasks[machine_id]

    def _record(
        self, event: str, row: MachineInfo, duration_s: float | None, **detail: str
    ) -> None:
        if self._recorder is None:
            return
        about = {"provider": row.provider, **detail}
        if row.host is not None:
            about["host"] = row.host
        self._recorder.event(
            event,
            f"machine {row.machine_id}",
            at_s=time.time(),
            duration_s=duration_s,
            value=float(row.slots),
            detail=about,
        )


class Occupancy:
    """The number of used slots of each machine, by its id."""

    def __init__(self, topologies: Iterable[Topology], instances: Iterable[Instance]) -> None:
        self.used: Counter[int] = Counter()
        # Used slots whose replica or instance is draining.
        self.draining: Counter[int] = Counter()
        for topology in topologies:
            for place in topology.replicas:
                self._count(place.machine_id, place.state is ReplicaState.DRAINING)
        for instance in instances:
            self._count(instance.machine_id, instance.state is InstanceState.DRAINING)

    def _count(self, machine_id: int | None, is_leaving: bool) -> None:
        if machine_id is not None:
            self.used[machine_id] += 1
            self.draining[machine_id] += is_leaving
