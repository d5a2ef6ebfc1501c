"""Which instances are short of memory while another has enough, and for how long.

What an instance may still take is at most what its computer has (fleet/free_memory.py). Where that
is short they all are, and so would be whoever came in their place: nobody is replaced for it. Where
one is short and another is not, what it has taken goes with it.
"""

from __future__ import annotations

from tidegate.control.service_crew import Crew


class MemoryShortage:
    """Looks after the instances of one service."""

    def __init__(self) -> None:
        # For how many readings in a row an instance has been short, and another was not.
        self._short: dict[int, int] = {}
        # Whether several were short in the last reading, and none was not.
        self.is_everybodys = False

    def see(self, crew: Crew, warning_bytes: float | None) -> None:
        """A reading; None: no memory is promised."""
        free = {
            one.instance_id: one.free_memory_bytes
            for one in crew.ready + crew.ready_spares
            if one.free_memory_bytes is not None
        }
        short = {one for one in free if warning_bytes is not None and free[one] < warning_bytes}
        self.is_everybodys = len(short) > 1 and len(short) == len(free)
        helped = short if len(short) < len(free) else set[int]()
        self._short = {one: self._short.get(one, 0) + 1 for one in helped}

    def readings(self, instance_id: int) -> int:
        """For how many readings it has been short, and another was not."""
        return self._short.get(instance_id, 0)
