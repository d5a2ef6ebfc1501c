"""Simulated machines: ordered, booting, then running with their slots, until halted.

A machine costs from the order to the halt, booting included, as clouds bill it. A boot may fail
at its end. A failed machine never counts as running, and costs nothing from then on.
"""

from __future__ import annotations

import math
import random

from tidegate.core.fleet import MachineState
from tidegate.core.steering import MachineSample
from tidegate.simulation.settings import PlantSettings

_RUNNING = (MachineState.UP, MachineState.WARM)


class Machine:
    """A machine, and when its boot ends."""

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
    """All simulated machines of a run."""

    def __init__(self, settings: PlantSettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._next_id = 1
        self.by_id: dict[int, Machine] = {}
        # Boots ordered during the run.
        self.ordered = 0
        self.paid_s = 0.0
        self.failed_boots = 0

    def boot(self, slots: int, now: float, *, warm: bool = False, at_once: bool = False) -> Machine:
        """Order a machine. With `at_once` it runs immediately and is not counted as ordered."""
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
        """Finish the boots that end by now, successful or failed, and return their machines."""
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
        """Return when the next boot ends, or infinity if none is booting."""
        return min(
            (m.ready_at for m in self.by_id.values() if m.state is MachineState.BOOTING),
            default=math.inf,
        )

    def pay(self, tick_s: float) -> None:
        """Add the cost of one tick of all machines that have not failed."""
        for machine in self.by_id.values():
            if machine.state is not MachineState.FAILED:
                self.paid_s += tick_s

    def halt(self, machine_id: int) -> None:
        self.by_id.pop(machine_id, None)

    def running(self) -> int:
        return sum(machine.state in _RUNNING for machine in self.by_id.values())

    def samples(self, used: dict[int, int], draining: dict[int, int]) -> list[MachineSample]:
        """Return the machines in the form that the provisioner reads."""
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
