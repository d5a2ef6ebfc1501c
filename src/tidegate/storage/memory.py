"""The in-memory twin of the PostgreSQL store: same fencing, same answers, nothing on disk.

Strategy: every method of its parts says in Python what its SQL function says in sql/, and a change
happens between two turns of the event loop, which is what a transaction is there. A store answers
later, never at once: nobody may rely on the contrary. Several nodes of one process may share one
store; what it holds lives as long as the object, so a node that comes back finds its queues again.
For tests, ours and users'.
"""

from __future__ import annotations

from tidegate.storage.memory_clients import MemoryClients
from tidegate.storage.memory_hosting import MemoryHosting
from tidegate.storage.memory_messages import MemoryMessages
from tidegate.storage.memory_ownership import MemoryOwnership
from tidegate.storage.memory_topics import MemoryTopics


class MemoryStore(MemoryHosting, MemoryMessages, MemoryOwnership, MemoryTopics, MemoryClients):
    """A store without a server."""

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """What is stored stays: a node that starts again on this store finds it."""

    def standing(self, queue_id: int) -> int | None:
        return 0
