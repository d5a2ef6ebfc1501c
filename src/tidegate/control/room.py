"""The slots available to a service or queue, and a text that says where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """A number of slots; `words` complete the sentence "… are needed, and"."""

    slots: int
    words: str

    @staticmethod
    def of_machines(machines: int, slots_per_machine: int) -> Room:
        """Return all slots of this number of machines."""
        slots = machines * slots_per_machine
        return Room(slots, f"{machines} machine(s) of {slots_per_machine} slot(s) take {slots}")
