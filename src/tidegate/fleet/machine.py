"""The supervisor of one machine: its node, its workers and its instances of HTTP services.

Theory of operation
-------------------

`tidegate machine` runs one `MachineSupervisor`. It polls the store and moves its processes one step
towards what the store says:

    node        started, and restarted with backoff if it died
    replicas    assigned to this machine: `ReplicaWorkers` keeps the worker processes of each
    instances   assigned to this machine: `HostedInstances` keeps one process for each
    report      problems are reported to the store as one text

Nothing is kept in memory that the store does not know. Each step may be lost with the process and
is repeated by the next one. If the store does not answer, all processes keep running.

A draining replica keeps all its workers while it still gets new messages. Then it keeps one worker
while anything is stored in it, because groups and delayed messages leave it only by being consumed.
The others end one after the other, the least busy first.

The supervisor ends in good order if it is stopped or its keeper has died. It also ends if the store
no longer wants the machine: the leader halted it, or gave it up as failed. Workers and instances
end before the node, because workers return their messages to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from tidegate.client.connect import connect
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.machines import FleetStore
from tidegate.core.model import QueueInfo
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.services import HostingStore, Instance
from tidegate.core.topology import ReplicaInfo, ReplicaState, ReplicationStore, Scaling
from tidegate.fleet.applications import AppOptions, HostedInstances
from tidegate.fleet.process import keeper
from tidegate.fleet.processes import ReplicaWorkers, SupervisedProcess
from tidegate.telemetry.stats import ClusterStats, QueueStats

log = logging.getLogger(__name__)

# Seconds between two reports, whose answer says whether the machine is still wanted.
_REPORT_S = 1.0
_ASK_NODE_S = 2.0
# client/connection.py names an anonymous client program@host-pid-token.
_PID_IN_NAME = re.compile(r"@.*-(\d+)-[0-9a-f]+$")


class MachineStore(FleetStore, ReplicationStore, HostingStore, Protocol):
    """The parts of the store that a machine needs."""

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None: ...


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a machine."""

    slots: int = 1
    poll_s: float = 0.25
    # Seconds in which a worker or an instance may finish its work when it ends.
    drain_s: float = 30.0
    # Where instances listen, and the name under which others reach them (None means the same).
    host: str = "127.0.0.1"
    advertise: str | None = None
    # Folder for code that the leader sends.
    data: Path = Path("tidegate-data")


class _WorkerSpec(NamedTuple):
    """What the workers of a replica run, and how many are wanted."""

    target: str
    workers: int
    is_leaving: bool

    def workers_for(self, queue: QueueStats | None) -> int:
        # An unknown queue must not be treated as empty.
        if not self.is_leaving or queue is None:
            return self.workers
        return 1 if queue.waiting or queue.unacknowledged else 0


class MachineSupervisor:
    """Starts, watches and ends the processes of one machine."""

    def __init__(
        self,
        machine_id: int,
        store: MachineStore,
        node: SupervisedProcess,
        options: MachineOptions,
    ) -> None:
        self.machine_id = machine_id
        self._store = store
        self._node = node
        self._options = options
        self._workers: dict[str, ReplicaWorkers] = {}
        self._known: dict[int, QueueInfo] = {}
        # Set if something must be reported before the next poll.
        self._news = asyncio.Event()
        self._hosted = HostedInstances(
            store,
            AppOptions(
                machine_id=machine_id,
                host=options.host,
                advertise=options.advertise,
                drain_s=options.drain_s,
            ),
            options.data,
            self._news.set,
        )
        self._node_trouble = ""
        self._slots_trouble = ""
        self._reported_at = float("-inf")
        self._reported = ""

    async def run(self, stop: asyncio.Event) -> str:
        """Run until stopped or not wanted; return the reason of the end.

        Raises `Unavailable` if the machine is not wanted from the beginning.
        """
        if not await self._store.report_machine(self.machine_id, ""):
            raise Unavailable(
                f"nobody wants machine {self.machine_id}: no leader has ordered it, or it was "
                "halted or given up meanwhile"
            )
        kept_by = keeper()
        try:
            while True:
                if kept_by is not None and not kept_by.is_alive:
                    return "the process that keeps this machine is gone"
                if not await self._is_wanted():
                    return "nobody wants this machine any more"
                await self._poll()
                if await self._pause(stop):
                    return "told to stop"
        finally:
            await self._end()

    async def _pause(self, stop: asyncio.Event) -> bool:
        """Wait until the next poll is due; return True if `stop` is set."""
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(self._news.wait())}
        await asyncio.wait(
            waiting, timeout=self._options.poll_s, return_when=asyncio.FIRST_COMPLETED
        )
        await cancel_and_wait(waiting)
        self._news.clear()
        return stop.is_set()

    async def _poll(self) -> None:
        await self._ensure_node()
        if not self._node.address:
            return
        try:
            mine = [
                one for one in await self._store.instances() if one.machine_id == self.machine_id
            ]
            places = await self._store.assigned(self.machine_id)
            places, mine = self._within_slots(places, mine)
            await self._hosted.adjust(mine, self._node.address)
            wanted = await self._wanted(places)
        except TidegateError as failure:
            log.warning("what runs, runs on: %s", failure, extra={"machine": self.machine_id})
            return
        for name, replica in wanted.items():
            workers = self._workers.get(name)
            if workers is None or (workers.target != replica.target and workers.are_gone):
                self._workers[name] = ReplicaWorkers(
                    name, replica.target, self.machine_id, self._options.drain_s
                )
        numbers = await self._numbers(wanted)
        for name, workers in list(self._workers.items()):
            queue = numbers.get(name)
            count = 0
            if (now_wanted := wanted.get(name)) and now_wanted.target == workers.target:
                count = now_wanted.workers_for(queue)
            await workers.adjust(count, self._node.address, _held(queue))
            if name not in wanted and workers.are_gone:
                del self._workers[name]

    async def _wanted(self, places: list[ReplicaInfo]) -> dict[str, _WorkerSpec]:
        """Return the replicas that need workers on this machine, by name."""
        wanted: dict[str, _WorkerSpec] = {}
        scalings: dict[int, Scaling | None] = {}
        known: dict[int, QueueInfo] = {}
        for place in places:
            info = self._known.get(place.queue_id)
            info = info or await self._store.find_queue(place.queue_id, None)
            if info is None:
                continue
            known[place.queue_id] = info
            if info.alias_id not in scalings:
                topology = await self._store.topology(info.alias_id)
                scalings[info.alias_id] = None if topology is None else topology.scaling
            scaling = scalings[info.alias_id]
            if scaling is not None and scaling.worker is not None:
                wanted[info.name] = _WorkerSpec(
                    scaling.worker,
                    scaling.workers_per_replica,
                    # A draining replica with a share still gets new messages and needs all workers.
                    place.state is ReplicaState.DRAINING and place.share == 0.0,
                )
        self._known = known
        return wanted

    def _within_slots(
        self, places: list[ReplicaInfo], instances: list[Instance]
    ) -> tuple[list[ReplicaInfo], list[Instance]]:
        """Return what fits into the slots.

        What already runs here comes first, then replicas, then the oldest instances.
        """
        slots = self._options.slots
        self._slots_trouble = ""
        if len(places) + len(instances) <= slots:
            return places, instances
        also = f" and {len(instances)} instances" if instances else ""
        self._slots_trouble = f"{len(places)} replicas{also} are assigned to {slots} slots"
        have = self._hosted.ids
        turns: list[tuple[bool, bool, int]] = [
            *((place.queue_id not in self._known, False, place.queue_id) for place in places),
            *((one.instance_id not in have, True, one.instance_id) for one in instances),
        ]
        kept = {(is_instance, number) for _, is_instance, number in sorted(turns)[:slots]}
        return (
            [place for place in places if (False, place.queue_id) in kept],
            [one for one in instances if (True, one.instance_id) in kept],
        )

    # The node

    async def _ensure_node(self) -> None:
        if not self._node.is_due:
            return
        if self._node.pid:
            log.error("the node died and is started again", extra={"machine": self.machine_id})
        try:
            # In this thread, because the kernel ends the child with the thread that started it.
            self._node.start()
            await asyncio.to_thread(self._node.wait_until_ready)
        except TidegateError as failure:
            self._node_trouble = f"its node does not start: {failure}"
            log.error("%s", self._node_trouble, extra={"machine": self.machine_id})
        else:
            self._node_trouble = ""
            log.info(
                "node serves", extra={"machine": self.machine_id, "address": self._node.address}
            )

    async def _numbers(self, wanted: dict[str, _WorkerSpec]) -> dict[str, QueueStats]:
        """Return the stats of the replicas that have workers to end; empty if there are none."""
        leaving = [
            name
            for name, workers in self._workers.items()
            if name not in wanted
            or wanted[name].is_leaving
            or wanted[name].workers < len(workers.pids)
        ]
        if not leaving:
            return {}
        try:
            async with asyncio.timeout(_ASK_NODE_S):
                connecting = connect(self._node.address, mode="read-only", reconnect_s=_ASK_NODE_S)
                async with connecting as mq:
                    found = _by_name(await mq.node_stats())
                    for name in leaving:
                        # Another node may still own it, or own it again.
                        if name not in found:
                            found |= _by_name(await mq.stats(name))
                    return found
        except (TidegateError, TimeoutError) as failure:
            log.warning(
                "the node does not say who is idle: %s", failure, extra={"machine": self.machine_id}
            )
            return {}

    # Reports and the end

    async def _is_wanted(self) -> bool:
        now = asyncio.get_running_loop().time()
        troubles = [self._node_trouble, self._slots_trouble, self._hosted.trouble]
        troubles += [workers.trouble for workers in self._workers.values()]
        detail = "; ".join(trouble for trouble in troubles if trouble)
        if detail == self._reported and now - self._reported_at < _REPORT_S:
            return True
        try:
            wanted = await self._store.report_machine(self.machine_id, detail)
        except TidegateError as failure:
            log.warning("the store was not told: %s", failure, extra={"machine": self.machine_id})
            return True
        self._reported, self._reported_at = detail, now
        return wanted

    async def _end(self) -> None:
        """End all processes; workers before the node, because they return messages to it."""
        await asyncio.gather(
            self._hosted.stop(), *(workers.stop() for workers in self._workers.values())
        )
        await self._node.stop()


def _by_name(cluster: ClusterStats) -> dict[str, QueueStats]:
    return {queue.name: queue for node in cluster.nodes for queue in node.queues}


def _held(queue: QueueStats | None) -> dict[int, int]:
    """Return the unacknowledged messages of each worker process, by pid.

    Clients with a name of their own cannot be mapped to a pid and are left out.
    """
    held: dict[int, int] = {}
    for consumer in [] if queue is None else queue.consumers:
        if found := _PID_IN_NAME.search(consumer.client_name):
            pid = int(found[1])
            held[pid] = held.get(pid, 0) + consumer.unacknowledged
    return held
