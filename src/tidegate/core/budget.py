"""How much memory messages may take in a node, and how much they do."""

from __future__ import annotations


class Budget:
    """Counters with a bound; queues add to them, a node asks them."""

    __slots__ = ("bound_bytes", "used_bytes", "waiting_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        # Stored messages that are kept in memory.
        self.used_bytes = 0
        # Accepted messages that are not on disk yet.
        self.waiting_bytes = 0

    @property
    def is_flooded(self) -> bool:
        """Whether the store cannot keep up: then producers have to wait at their sockets."""
        return self.waiting_bytes > self.bound_bytes // 8

    def has_room_for(self, wanted_bytes: int) -> bool:
        return self.used_bytes + wanted_bytes <= self.bound_bytes
