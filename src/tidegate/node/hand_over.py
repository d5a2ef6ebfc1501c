"""Hands the messages of a logical queue over to its replicas.

Consumers take nothing from the logical queue itself. When messages are put to it, or when its
topology has changed, the owners of the replicas pull them in batches, by their shares. Only whole
segments move, so a replica may get more than its share; the replica that is owed most is served
next.

Messages with a group or a receiver go only to their assigned replica. A replica hands over messages
in the same way if their slot has moved.
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
    """Hands over the messages of one queue that this node owns."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self._node = node
        self._replica = replica
        self._woken = asyncio.Event()
        # Replica number -> messages that it got beyond its share; negative: it is owed some.
        self._ahead: dict[int, float] = {}
        # Numbers of replicas that did not answer; the others get their share for a while.
        self._away: set[int] = set()
        self._task = asyncio.create_task(self._run(), name="hand-over")

    def wake(self) -> None:
        """Run again: messages came, or a replica that may take some."""
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
                # If this loop ended, messages would stay where no consumer reads them.
                log.exception("a bug while handing %s over", self._name)
                await asyncio.sleep(_BACKOFF_S)

    async def _step(self) -> bool:
        """Have replicas take one batch each; return whether anything moved."""
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
            # A message before them is still leased, and its end does not wake this task.
            asyncio.get_running_loop().call_later(_AWAY_S, self.wake)
        # Reading messages from the store may have brought assigned ones into memory.
        return went > 0 or self._homes_wanted(topology) != homes_wanted

    async def _share(self, topology: Topology) -> int:
        """Have one replica take a batch, by the shares of the reachable ones."""
        places = {p.number: p for p in reachable(topology.replicas) if p.number not in self._away}
        shares = {number: place.share for number, place in places.items() if place.share > 0}
        if not shares:
            shares = dict.fromkeys(places, 1.0)
        whole = sum(shares.values())
        # The replica that is owed most is first; the next one only if that one takes nothing.
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
        """Have a replica take messages; return how many.

        0 if it cannot be reached; it is then left out for a while.
        """
        try:
            return await self._give(place, count, homed)
        except RetryLater as failure:
            log.info("%s: replica %s takes nothing: %s", self._name, place.number, failure)
            self._away.add(place.number)
            asyncio.get_running_loop().call_later(_AWAY_S, self._try_again, place.number)
            return 0

    def _try_again(self, number: int) -> None:
        # No clock is compared: the timer may fire a millisecond early, and it fires once.
        self._away.discard(number)
        self.wake()

    @property
    def _name(self) -> str:
        return self._replica.info.name

    def _homes_wanted(self, topology: Topology) -> list[ReplicaPlace]:
        """Return the other replicas to which messages here are assigned."""
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
        """Have the owner of a replica take about `count` messages; return how many."""
        source_id = self._replica.info.queue_id
        taker = self._node.replicas.get(place.queue_id)
        if taker is not None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await self._node.exchange.pull(taker, source_id, count, homed=homed)
            except TimeoutError:
                # The transfer itself continues; the other replicas need not wait for it.
                raise Unavailable(f"the store of replica {place.number} does not answer") from None
        if place.address is None or place.address == self._node.address:
            raise Unavailable(f"replica {place.number} is on its way")
        pull = Pull(place.queue_id, source_id, count, homed)
        answer = await self._node.neighbours.ask(place.address, pull, _ANSWER_S)
        assert isinstance(answer, PullResponse)
        return answer.count
