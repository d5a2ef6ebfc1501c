"""Temporary queues of connections, and cleaning up after topics.

The node of a connection deletes its temporary queues when the connection ends. If that node is
gone, the owner of each queue deletes it.
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

# Unused payloads are looked for in one of this many sweeps.
_PAYLOAD_SWEEPS = 10


class Topics:
    """A node's part in topics beside publishing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sweeps = 0

    def connection_ended(self, queue_ids: Iterable[int]) -> None:
        """Delete the temporary queues of a connection."""
        for queue_id in queue_ids:
            self._node.do_soon(self._delete(queue_id))

    async def _delete(self, queue_id: int) -> None:
        try:
            await insist(lambda: self._node.ownership.delete_anywhere(queue_id))
        except QueueNotExisting:
            return
        except TidegateError as failure:
            # Another node deletes it once this node is gone.
            log.warning("queue %s outlives its connection: %s", queue_id, failure)

    async def sweep(self) -> None:
        """Delete temporary queues of nodes that are gone, and payloads that no segment uses."""
        store = self._node.store
        for queue_id in await store.lost_subscriptions():
            if queue_id in self._node.replicas:
                await self._delete(queue_id)
        # Rarely, since it scans all payloads. Normally the last segment to use a payload frees it.
        if self._sweeps % _PAYLOAD_SWEEPS == 0:
            await store.free_payloads()
        self._sweeps += 1
