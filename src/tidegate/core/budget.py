"""The memory for messages in a node: its limit and its use."""

from __future__ import annotations


class Budget:
    """Counters with a limit; queues update them, and the node checks them."""

    __slots__ = ("bound_bytes", "used_bytes", "waiting_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        # Bytes of stored messages in memory.
        self.used_bytes = 0
        # Bytes of accepted messages that are not on disk yet.
        self.waiting_bytes = 0

    @property
    def is_flooded(self) -> bool:
        """Whether the store cannot keep up, so that the node must stop reading from producers."""
        return self.waiting_bytes > self.bound_bytes // 8

    def has_room_for(self, wanted_bytes: int) -> bool:
        return self.used_bytes + wanted_bytes <= self.bound_bytes
