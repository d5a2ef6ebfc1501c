"""The logical queues of which this node owns a part.

Theory of operation

The catalogue stores the topology of each logical queue: its replicas, their states and shares, the
assignment slots and the scaling settings. The leader changes it. Each node follows it with one
cheap question every 0.25 s: has the version changed? If it has, `look` reads all topologies and
fits each queue of this node to its topology:

- A logical queue (`_fit_alias`): its members get the change, and its own messages are handed over
  to replicas by an `AliasForwarder`.
- A replica (`_fit_replica`): it learns its assignment slots and its rate limit. Messages whose slot
  is assigned elsewhere now are handed over too.
- A queue that has no replicas any more becomes a plain queue again.

On a node of a machine, `look` also brings the replicas here that are assigned to the machine.

Invariant: before a queue accepts messages of an assignment slot, it has read the dedup ids that
other replicas stored (`_learns`). Otherwise a repeated message would be stored again.

Failures: if the store does not answer, the next poll repeats the work. If only one queue cannot be
fitted, the others are, and that one is tried again. A lapsed lease or a lost notification changes
no version; a node that owns logical queues therefore reads the topologies at least once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.core.ending import ended
from tidegate.core.errors import NotOwner, TidegateError
from tidegate.core.model import QueueInfo
from tidegate.core.replication import Topology
from tidegate.node.alias import Alias
from tidegate.node.hand_over import HandOver
from tidegate.node.pace import Pace
from tidegate.node.replica import Replica

if TYPE_CHECKING:
    from tidegate.node.server import Node
    from tidegate.node.session import Session

log = logging.getLogger(__name__)

_LOOK_S = 0.25
_LOOK_IDLE_S = 2.0
# What changes without a new version, such as a lapsed lease, is noticed after this many polls.
_LOOKS_PER_CHECK = 4


class Aliases:
    """The topologies that a node knows, and its part in them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._topologies: dict[int, Topology] = {}
        self._version = -1
        # Whether a queue of this node has not been fitted to `_version` yet.
        self._is_behind = False
        self._aliases: dict[Replica, Alias] = {}
        self._hand_overs: dict[Replica, HandOver] = {}
        self._bringing: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        # Queues of this node that belong to a logical queue.
        self._parts: set[Replica] = set()
        self._has_part = asyncio.Event()

    async def watch_forever(self) -> None:
        looks = 0
        while True:
            await self._pause()
            looks += 1
            try:
                await self.look(again=looks % _LOOKS_PER_CHECK == 0 and bool(self._aliases))
            except TidegateError as failure:
                log.warning("could not look for changes of logical queues: %s", failure)
            except Exception:
                log.exception("a bug while looking for changes of logical queues")

    async def _pause(self) -> None:
        """Wait until the next poll; longer if the node has no part in a logical queue."""
        if self._parts or self._node.machine_id is not None:
            await asyncio.sleep(_LOOK_S)
            return
        self._has_part.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_part.wait(), _LOOK_IDLE_S)

    async def look(self, *, again: bool = False) -> None:
        """Read the topologies if the version has changed; with `again` in any case."""
        async with self._looking:
            version = await self._node.store.topology_version()
            if version != self._version or again or self._is_behind:
                found = await self._node.store.topologies()
                self._topologies = {topology.queue_id: topology for topology in found}
                self._version = version
                self._is_behind = False
                for replica in list(self._node.replicas.values()):
                    try:
                        await self._fit(replica)
                    except TidegateError as failure:
                        # Its store may not answer. The other queues must not wait for it.
                        log.warning("%s is not fitted yet: %s", replica.info.name, failure)
                        self._is_behind = True
            await self._bring_assigned()

    async def close(self) -> None:
        self._parts.clear()
        ending: list[asyncio.Task[None]] = [each.end() for each in self._hand_overs.values()]
        await ended([*ending, *self._bringing])

    # Queries

    def topology_of(self, info: QueueInfo) -> Topology | None:
        """Return the topology of the logical queue that `info` belongs to, if known."""
        return self._topologies.get(info.alias_id or info.queue_id)

    async def all_of_them(self) -> tuple[int, list[Topology]]:
        """Return the version and the topologies of all logical queues."""
        await self.look()
        return self._version, list(self._topologies.values())

    def topology_with(self, queue_id: int, other_id: int) -> Topology | None:
        """Return the topology to which both queues belong; None if there is none."""
        for topology in self._topologies.values():
            ids = {topology.queue_id, *(place.queue_id for place in topology.replicas)}
            if queue_id in ids and other_id in ids and queue_id != other_id:
                return topology
        return None

    def known(self, replica: Replica) -> Alias | None:
        """Return the state of a logical queue that this node owns; None if not known."""
        return self._aliases.get(replica)

    async def alias(self, replica: Replica) -> Alias:
        """Return the state of a logical queue that this node owns.

        Raises `NotOwner` if the queue has no replicas.
        """
        if replica not in self._aliases:
            await self.look(again=True)
        alias = self._aliases.get(replica)
        if alias is None:
            raise NotOwner(f"queue {replica.info.title} has no replicas: look it up again")
        return alias

    # Queues come and go

    async def owned(self, replica: Replica) -> None:
        """Fit a queue that this node has claimed, before it is served."""
        info = replica.info
        if info.elastic or info.alias_id:
            queue_id = info.alias_id or info.queue_id
            topology = await self._node.store.topology(queue_id)
            if topology is not None:
                self._topologies[queue_id] = topology
            await self._fit(replica)

    def disowned(self, replica: Replica) -> None:
        """End this node's part in a queue that it no longer owns."""
        self._parts.discard(replica)
        alias = self._aliases.pop(replica, None)
        if alias is not None:
            alias.end()
        hand_over = self._hand_overs.pop(replica, None)
        if hand_over is not None:
            replica.on_ready = _nobody
            hand_over.end()

    def forget_session(self, session: Session) -> None:
        for alias in self._aliases.values():
            alias.forget(session)

    async def _fit(self, replica: Replica) -> None:
        """Fit a queue of this node to its topology."""
        topology = self.topology_of(replica.info)
        if replica.fenced:
            return
        if replica.info.alias_id or topology is not None:
            self._parts.add(replica)
            self._has_part.set()
        if replica.info.alias_id:
            await self._fit_replica(replica, topology)
        elif topology is not None:
            await self._fit_alias(replica, topology)
        elif replica in self._aliases or replica.info.elastic:
            if not await self._learns(replica):
                return
            self.disowned(replica)
            replica.holding.homes = None
            replica.become_elastic(False)

    async def _learns(self, replica: Replica) -> bool:
        """Read the dedup ids that other replicas have stored; False if the queue is lost meanwhile.

        Until they are known, the replica refuses messages of slots that are new to it.
        """
        await replica.intake.dedup.learn()
        return not replica.fenced

    async def _fit_alias(self, replica: Replica, topology: Topology) -> None:
        if replica.holding.homes != topology.homes:
            # Without assigned slots it stores all messages itself.
            if not topology.homes and not await self._learns(replica):
                return
            replica.holding.homes = topology.homes
            replica.intake.homes.changed()
        replica.become_elastic(True)
        alias = self._aliases.get(replica)
        if alias is None:
            self._aliases[replica] = Alias(topology, self._unacknowledged)
        else:
            alias.show(topology)
        self.wake_hand_over(replica)

    async def _fit_replica(self, replica: Replica, topology: Topology | None) -> None:
        number, holding = replica.info.number, replica.holding
        homes = () if topology is None else topology.homes
        # Also the first time: other replicas may have stored ids of its slots before.
        takes_more = holding.homes is None or _is_home_to_more(homes, holding.homes, number)
        if takes_more and not await self._learns(replica):
            return
        if topology is None or topology.replica(number) is None:
            # The topology known here may be older than the replica.
            if await self._node.store.locate(replica.info.queue_id) is None:
                replica.deleted()
            return
        holding.spans_stores = len({place.store_number for place in topology.replicas}) > 1
        holding.homes = topology.homes
        replica.homes.freeze()
        rate = topology.scaling.rate_max_per_s
        if rate is None:
            holding.pace = None
        elif holding.pace is None or holding.pace.per_s != rate:
            holding.pace = Pace(rate, holding.clock.monotonic())
        if holding.queue.residents.has_homed or holding.queue.tails.count:
            # Some of its messages may be assigned to another replica by now.
            self.wake_hand_over(replica)

    def wake_hand_over(self, replica: Replica) -> None:
        """Wake the task that hands messages of `replica` over to other replicas."""
        if replica not in self._parts:
            return
        hand_over = self._hand_overs.get(replica)
        if hand_over is None:
            hand_over = self._hand_overs[replica] = HandOver(self._node, replica)
            if not replica.info.alias_id:
                replica.on_ready = hand_over.wake
        hand_over.wake()

    def _unacknowledged(self, queue_id: int, client_id: int, number: int) -> int | None:
        replica = self._node.replicas.get(queue_id)
        if replica is None:
            return None
        for consumer in replica.dispatch.holders.consumers:
            if consumer.outlet.client_id == client_id and consumer.consumer == number:
                return consumer.book.outstanding
        return None

    # Replicas assigned to this node's machine

    async def _bring_assigned(self) -> None:
        machine_id = self._node.machine_id
        if machine_id is None or self._bringing or self._node.stopping:
            return
        for place in await self._node.store.assigned(machine_id):
            if place.queue_id not in self._node.replicas:
                task = asyncio.create_task(self._bring(place.queue_id))
                self._bringing.add(task)
                task.add_done_callback(self._bringing.discard)

    async def _bring(self, queue_id: int) -> None:
        try:
            await self._node.ownership.bring_here(queue_id)
        except TidegateError as failure:
            log.info("replica %s does not come yet: %s", queue_id, failure)


def _is_home_to_more(homes: Sequence[int], before: Sequence[int], number: int) -> bool:
    """Return whether the replica accepts slots that it did not accept before.

    Also if a slot is opened: until then other replicas may have stored messages of it.
    """
    if homes == before:
        return False
    return any(
        home == number and (index >= len(before) or before[index] != number)
        for index, home in enumerate(homes)
    )


def _nobody() -> None:
    """Do nothing; the callback of a replica without a hand-over."""
