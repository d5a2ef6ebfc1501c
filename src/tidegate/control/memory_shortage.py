"""Instances that are short of memory although a replacement would not be, and for how long.

The free memory of an instance is limited by its computer's (fleet/free_memory.py). If all instances
are short, a replacement would be short too, so none is replaced. If only some are short, they use
too much themselves. A single instance is compared with its own past: if it once had enough, a
replacement has enough again, or is never replaced.
"""

from __future__ import annotations

from tidegate.control.service_crew import Crew


class MemoryShortage:
    """Counts how long each instance of one service has been short of memory."""

    def __init__(self) -> None:
        # By instance: consecutive samples in which it was short and a new one would not be.
        self._short: dict[int, int] = {}
        # Instances that have had enough memory at some time.
        self._had_enough: set[int] = set()
        # Whether several instances were short in the last sample, and none had enough.
        self.is_everybodys = False

    def see(self, crew: Crew, warning_bytes: float | None) -> None:
        """Use a new sample; `warning_bytes` is None if the agreement promises no free memory."""
        free = {
            one.instance_id: one.free_memory_bytes
            for one in crew.ready + crew.ready_spares
            if one.free_memory_bytes is not None
        }
        short = {one for one in free if warning_bytes is not None and free[one] < warning_bytes}
        self.is_everybodys = len(short) > 1 and len(short) == len(free)
        self._had_enough = (self._had_enough | (free.keys() - short)) & free.keys()
        if len(short) < len(free):
            helped = short
        else:
            helped = short & self._had_enough if len(free) == 1 else set()
        self._short = {one: self._short.get(one, 0) + 1 for one in helped}

    def readings(self, instance_id: int) -> int:
        """Return for how many consecutive samples a replacement would have helped."""
        return self._short.get(instance_id, 0)
