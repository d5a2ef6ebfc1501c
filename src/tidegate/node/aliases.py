"""The logical queues that a node has a part in, kept as the catalogue says.

One cheap question a few times a second (has any topology changed?) keeps everything in step: who is
joined to an alias that we own hears of it, replicas of ours learn where homes are and how fast they
may be, a machine's node brings here what is assigned to it, and lets go of what has been retired.
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
# What nobody announces (a lapsed lease, a lost wake-up) is noticed after so many looks.
_LOOKS_PER_CHECK = 4


class Aliases:
    """Of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._topologies: dict[int, Topology] = {}
        self._version = -1
        # Whether a queue of ours is not yet what that version says.
        self._is_behind = False
        self._aliases: dict[Replica, Alias] = {}
        self._hand_overs: dict[Replica, HandOver] = {}
        self._bringing: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        # Aliases and replicas of ours, of which anything has to be known soon.
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
        """Until the next look: a node without any part in a logical queue may take its time."""
        if self._parts or self._node.machine_id is not None:
            await asyncio.sleep(_LOOK_S)
            return
        self._has_part.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_part.wait(), _LOOK_IDLE_S)

    async def look(self, *, again: bool = False) -> None:
        """See what has changed; with `again`, also what changes without a new version."""
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
                        # Its store may be away: the others are not kept waiting, it is next time.
                        log.warning("%s is not fitted yet: %s", replica.info.name, failure)
                        self._is_behind = True
            await self._bring_assigned()

    async def close(self) -> None:
        self._parts.clear()
        ending: list[asyncio.Task[None]] = [each.end() for each in self._hand_overs.values()]
        await ended([*ending, *self._bringing])

    # What is known

    def topology_of(self, info: QueueInfo) -> Topology | None:
        """That of the logical queue to which an alias or a replica belongs."""
        return self._topologies.get(info.alias_id or info.queue_id)

    async def all_of_them(self) -> tuple[int, list[Topology]]:
        """Every logical queue of the cluster, and the version in which they were read."""
        await self.look()
        return self._version, list(self._topologies.values())

    def topology_with(self, queue_id: int, other_id: int) -> Topology | None:
        """That of the logical queue to which two queues belong."""
        for topology in self._topologies.values():
            ids = {topology.queue_id, *(place.queue_id for place in topology.replicas)}
            if queue_id in ids and other_id in ids and queue_id != other_id:
                return topology
        return None

    def known(self, replica: Replica) -> Alias | None:
        """The logical queue of an alias that we own, as far as is known."""
        return self._aliases.get(replica)

    async def alias(self, replica: Replica) -> Alias:
        """The logical queue of an alias that we own; NotOwner when it is a plain queue."""
        if replica not in self._aliases:
            await self.look(again=True)
        alias = self._aliases.get(replica)
        if alias is None:
            raise NotOwner(f"queue {replica.info.title} has no replicas: look it up again")
        return alias

    # Queues come and go

    async def owned(self, replica: Replica) -> None:
        """A queue has become ours: before anybody is served it knows its place."""
        info = replica.info
        if info.elastic or info.alias_id:
            queue_id = info.alias_id or info.queue_id
            topology = await self._node.store.topology(queue_id)
            if topology is not None:
                self._topologies[queue_id] = topology
            await self._fit(replica)

    def disowned(self, replica: Replica) -> None:
        """A queue is no longer ours."""
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
        """Make a queue of ours what the catalogue says."""
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
        """Who was the home of something has remembered ids that must not be stored again.

        Until they are known it refuses what is not at home there yet. False: it is no longer ours.
        """
        await replica.intake.dedup.learn()
        return not replica.fenced

    async def _fit_alias(self, replica: Replica, topology: Topology) -> None:
        if replica.holding.homes != topology.homes:
            # Without homes it takes everything itself.
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
        # At first, too: what it takes may have been somebody else's until this topology was made.
        takes_more = holding.homes is None or _is_home_to_more(homes, holding.homes, number)
        if takes_more and not await self._learns(replica):
            return
        if topology is None or topology.replica(number) is None:
            # Or it is newer than what we know.
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
            # Some of it may be at home elsewhere by now.
            self.wake_hand_over(replica)

    def wake_hand_over(self, replica: Replica) -> None:
        """Something is here that may belong elsewhere, or may go there now."""
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

    # A machine's node

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
    """Also when a home is opened: until then others may have stored something of it."""
    if homes == before:
        return False
    return any(
        home == number and (index >= len(before) or before[index] != number)
        for index, home in enumerate(homes)
    )


def _nobody() -> None:
    """Nobody wants to know."""
