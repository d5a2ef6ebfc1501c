"""How much memory messages may take in a node, and how much they do."""

from __future__ import annotations


class Budget:
    """A counter with a bound; queues add to it, a node asks it."""

    __slots__ = ("bound_bytes", "used_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0

    def has_room_for(self, wanted_bytes: int) -> bool:
        return self.used_bytes + wanted_bytes <= self.bound_bytes
