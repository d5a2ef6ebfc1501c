"""Queues that go with a connection, and what is left of topics when nobody looks after it.

Such a queue is deleted by the node whose connection it was; when that node is gone, by whichever
owns the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.core.errors import QueueNotExisting, TidegateError
from tidegate.node.meeting import insist

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Every so many sweeps payloads are looked at too.
_PAYLOAD_SWEEPS = 10


class Topics:
    """A node's part in the topics of its cluster, beside publishing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sweeps = 0

    def connection_ended(self, queue_ids: Iterable[int]) -> None:
        """Delete the queues that went with a connection."""
        for queue_id in queue_ids:
            self._node.do_soon(self._delete(queue_id))

    async def _delete(self, queue_id: int) -> None:
        try:
            await insist(lambda: self._node.ownership.delete_anywhere(queue_id))
        except QueueNotExisting:
            return
        except TidegateError as failure:
            # It is found again once this node is gone.
            log.warning("queue %s outlives its connection: %s", queue_id, failure)

    async def sweep(self) -> None:
        """Queues of connections to nodes that are gone, and payloads that nobody uses."""
        store = self._node.store
        for queue_id in await store.lost_subscriptions():
            if queue_id in self._node.replicas:
                await self._delete(queue_id)
        # Rarely: as a rule who uses a payload last frees it, and this looks at all of them.
        if self._sweeps % _PAYLOAD_SWEEPS == 0:
            await store.free_payloads()
        self._sweeps += 1
