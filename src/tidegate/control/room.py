"""What there is for a service or a queue: slots, and in words where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """So many slots; `words` end the sentence "… are needed, and"."""

    slots: int
    words: str

    @staticmethod
    def of_machines(machines: int, slots_per_machine: int) -> Room:
        """All slots of so many machines."""
        slots = machines * slots_per_machine
        return Room(slots, f"{machines} machine(s) of {slots_per_machine} slot(s) take {slots}")
