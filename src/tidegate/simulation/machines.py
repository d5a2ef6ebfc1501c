"""Simulated machines: ordered, booting for a while, then up with their slots, until halted.

Strategy: what is paid for is everything from the order to the halt, booting included, as clouds
bill it. A boot may fail at its end; a failed machine is never counted as running and costs nothing
from then on.
"""

from __future__ import annotations

import math
import random

from tidegate.core.fleet import MachineState
from tidegate.core.steering import MachineSample
from tidegate.simulation.settings import PlantSettings

_RUNNING = (MachineState.UP, MachineState.WARM)


class Machine:
    """A machine and when it is ready."""

    __slots__ = (
        "added_at",
        "host",
        "machine_id",
        "ready_at",
        "slots",
        "state",
        "warm",
        "will_fail",
    )

    def __init__(self, machine_id: int, slots: int, ready_at: float) -> None:
        self.machine_id = machine_id
        self.slots = slots
        self.state = MachineState.BOOTING
        self.ready_at = ready_at
        self.added_at = float(machine_id)
        self.will_fail = False
        self.warm = False
        self.host: str | None = None


class Machines:
    """All of them."""

    def __init__(self, settings: PlantSettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._next_id = 1
        self.by_id: dict[int, Machine] = {}
        # Boots that were ordered while it ran.
        self.ordered = 0
        self.paid_s = 0.0
        self.failed_boots = 0

    def boot(self, slots: int, now: float, *, warm: bool = False, at_once: bool = False) -> Machine:
        """Order one."""
        settings = self._settings
        boot_s = 0.0 if at_once else self._boot_s()
        machine = Machine(self._next_id, slots, now + boot_s)
        machine.warm = warm
        if not at_once and settings.boot_failure:
            machine.will_fail = self._chance.random() < settings.boot_failure
        self._next_id += 1
        self.ordered += not at_once
        self.by_id[machine.machine_id] = machine
        if at_once:
            machine.state = MachineState.WARM if warm else MachineState.UP
        return machine

    def _boot_s(self) -> float:
        mean, spread = self._settings.boot_s, self._settings.boot_spread
        if not spread or not mean:
            return mean
        variance = math.log1p(spread * spread)
        return self._chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))

    def ready(self, now: float) -> list[Machine]:
        """Boots that have come to their end, well or not."""
        ended = []
        for machine in self.by_id.values():
            if machine.state is MachineState.BOOTING and machine.ready_at <= now + 1e-9:
                if machine.will_fail:
                    machine.state = MachineState.FAILED
                    self.failed_boots += 1
                else:
                    machine.state = MachineState.WARM if machine.warm else MachineState.UP
                ended.append(machine)
        return ended

    def next_ready_at(self) -> float:
        """When the next boot ends."""
        return min(
            (m.ready_at for m in self.by_id.values() if m.state is MachineState.BOOTING),
            default=math.inf,
        )

    def pay(self, tick_s: float) -> None:
        """Everything that is not failed costs."""
        for machine in self.by_id.values():
            if machine.state is not MachineState.FAILED:
                self.paid_s += tick_s

    def halt(self, machine_id: int) -> None:
        self.by_id.pop(machine_id, None)

    def running(self) -> int:
        return sum(machine.state in _RUNNING for machine in self.by_id.values())

    def samples(self, used: dict[int, int], draining: dict[int, int]) -> list[MachineSample]:
        """As the provisioner sees them."""
        return [
            MachineSample(
                machine_id=machine.machine_id,
                state=machine.state,
                slots=machine.slots,
                used=used.get(machine.machine_id, 0),
                host=machine.host,
                added_at=machine.added_at,
                draining=draining.get(machine.machine_id, 0),
            )
            for machine in self.by_id.values()
        ]
