"""What an alias stores goes on to the replicas, by their shares, as soon as one can be reached.

Nobody consumes from an alias. Whatever is put to it is pulled by the replicas' owners, in bounded
batches, whenever something has come or the topology has changed. Whole segments go, so what each
got is kept in mind and whoever is owed most is next. Groups and addressed messages go home only;
a replica that has some whose home is elsewhere, since it moved, hands them over the same way.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidegate.core.errors import RetryLater, TidegateError, Unavailable
from tidegate.core.replication import ReplicaPlace, Topology
from tidegate.node.alias import reachable
from tidegate.node.exchange import MOVE_COUNT_MAX
from tidegate.node.homes import homes_of
from tidegate.node.parting import part
from tidegate.node.replica import Replica
from tidegate.wire.packets.exchange import Pull, PullResponse

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

_ANSWER_S = 15.0
_BACKOFF_S = 0.25
_AWAY_S = 1.0


class HandOver:
    """Of one queue that this node owns."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self._node = node
        self._replica = replica
        self._woken = asyncio.Event()
        # Number of a replica → messages that it got more than its share, below 0: less.
        self._ahead: dict[int, float] = {}
        # Numbers of replicas that could not be reached: the others have their share for a while.
        self._away: set[int] = set()
        self._task = asyncio.create_task(self._run(), name="hand-over")

    def wake(self) -> None:
        """Something came, or somebody who may take it."""
        self._woken.set()

    def end(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while not self._replica.fenced:
            await self._woken.wait()
            self._woken.clear()
            try:
                while await self._step():
                    pass
            except TidegateError as failure:
                log.info("%s cannot be handed over yet: %s", self._name, failure)
                await asyncio.sleep(_BACKOFF_S)
                self._woken.set()
            except Exception:
                # Without this loop messages would wait where nobody reads them.
                log.exception("a bug while handing %s over", self._name)
                await asyncio.sleep(_BACKOFF_S)

    async def _step(self) -> bool:
        """Let somebody take a part; whether anything went."""
        topology = self._node.aliases.topology_of(self._replica.info)
        queue = self._replica.holding.queue
        if topology is None or self._replica.fenced:
            return False
        if not queue.lanes.head_count and not queue.lanes.held_count and not queue.tails.count:
            return False
        await part(self._replica, topology)
        went = 0
        homes_wanted = self._homes_wanted(topology)
        for place in homes_wanted:
            went += await self._offer(place, MOVE_COUNT_MAX, homed=True)
        if self._replica.info.queue_id == topology.queue_id:
            went += await self._share(topology)
        if homes_wanted and not went:
            # What is before it is still with somebody, who does not know that we wait.
            asyncio.get_running_loop().call_later(_AWAY_S, self.wake)
        # Looking for what may be anywhere has perhaps brought something to memory that has a home.
        return went > 0 or self._homes_wanted(topology) != homes_wanted

    async def _share(self, topology: Topology) -> int:
        """One batch by the shares of those that can be reached."""
        places = {p.number: p for p in reachable(topology.replicas) if p.number not in self._away}
        shares = {number: place.share for number, place in places.items() if place.share > 0}
        if not shares:
            shares = dict.fromkeys(places, 1.0)
        whole = sum(shares.values())
        # Who is owed most is first; the others are asked when that one takes nothing.
        for number in sorted(shares, key=lambda n: (self._ahead.get(n, 0.0), -shares[n], n)):
            part_of_it = len(self._replica.holding.queue) * shares[number] / whole
            went = await self._offer(places[number], max(int(part_of_it), 1))
            if went:
                self._ahead = {
                    n: self._ahead.get(n, 0.0) - went * share / whole + went * (n == number)
                    for n, share in shares.items()
                }
                return went
        return 0

    async def _offer(self, place: ReplicaPlace, count: int, *, homed: bool = False) -> int:
        """As much as a replica takes; nothing if it cannot be reached, and not again at once."""
        try:
            return await self._give(place, count, homed)
        except RetryLater as failure:
            log.info("%s: replica %s takes nothing: %s", self._name, place.number, failure)
            self._away.add(place.number)
            asyncio.get_running_loop().call_later(_AWAY_S, self._try_again, place.number)
            return 0

    def _try_again(self, number: int) -> None:
        # No clock is compared: a timer may be a millisecond early, and it rings once.
        self._away.discard(number)
        self.wake()

    @property
    def _name(self) -> str:
        return self._replica.info.name

    def _homes_wanted(self, topology: Topology) -> list[ReplicaPlace]:
        """The replicas at which something that is here has its home."""
        replica = self._replica
        if not topology.homes or not replica.holding.queue.residents.has_homed:
            return []
        here = replica.info.number
        numbers = {
            abs(topology.homes[index])
            for segment in replica.holding.queue.segments()
            for index in homes_of(segment)
        }
        places = [topology.replica(number) for number in sorted(numbers - {here, *self._away})]
        return [place for place in places if place is not None and place.address is not None]

    async def _give(self, place: ReplicaPlace, count: int, homed: bool) -> int:
        """Have the owner of a replica take about so many; how many went."""
        source_id = self._replica.info.queue_id
        taker = self._node.replicas.get(place.queue_id)
        if taker is not None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await self._node.exchange.pull(taker, source_id, count, homed=homed)
            except TimeoutError:
                # What has begun goes on; others need not wait for it.
                raise Unavailable(f"the store of replica {place.number} does not answer") from None
        if place.address is None or place.address == self._node.address:
            raise Unavailable(f"replica {place.number} is on its way")
        pull = Pull(place.queue_id, source_id, count, homed)
        answer = await self._node.neighbours.ask(place.address, pull, _ANSWER_S)
        assert isinstance(answer, PullResponse)
        return answer.count
