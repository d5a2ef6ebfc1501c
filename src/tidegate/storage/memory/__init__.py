"""The in-memory twin of the PostgreSQL store: same fencing, same answers, nothing on disk.

Each method does in Python what its SQL function does in sql/. A change runs between two turns of
the event loop, which makes it a transaction. A method always answers in a later turn, as a real
store does, so that no caller can rely on an immediate answer.

Several nodes in one process may share a store. It lives as long as the object, so a node that
starts again finds its queues. It is for Tidegate's tests and those of its users.
"""

from __future__ import annotations

from tidegate.storage.memory.catalogue import MemoryClients, MemoryTopics
from tidegate.storage.memory.cluster import MemoryHosting
from tidegate.storage.memory.messages import MemoryMessages, MemoryOwnership


class MemoryStore(MemoryHosting, MemoryMessages, MemoryOwnership, MemoryTopics, MemoryClients):
    """A store without a server."""

    async def open(self) -> None:
        """Do nothing: there is no connection to open."""

    async def close(self) -> None:
        """Keep all data: a node that starts again on this store finds it."""

    def membership_epoch(self, queue_id: int) -> int | None:
        return 0
