"""Which instances are short of memory while another has enough, and for how long.

What an instance may still take is at most what its computer has (fleet/free_memory.py). Where that
is short they all are, and so would be whoever came in their place: nobody is replaced for it. Where
one is short and another is not, what it has taken goes with it. Of one that is alone its own past
tells: it had enough once, and whoever comes in its place has it again or stays for good.
"""

from __future__ import annotations

from tidegate.control.service_crew import Crew


class MemoryShortage:
    """Looks after the instances of one service."""

    def __init__(self) -> None:
        # For how many readings in a row an instance has been short, and a new one would not be.
        self._short: dict[int, int] = {}
        # Those that have had enough.
        self._had_enough: set[int] = set()
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
        self._had_enough = (self._had_enough | (free.keys() - short)) & free.keys()
        if len(short) < len(free):
            helped = short
        else:
            helped = short & self._had_enough if len(free) == 1 else set()
        self._short = {one: self._short.get(one, 0) + 1 for one in helped}

    def readings(self, instance_id: int) -> int:
        """For how many readings it has been short, and a new one would not be."""
        return self._short.get(instance_id, 0)
