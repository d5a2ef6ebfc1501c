"""A simulated replica: messages that wait in order of arrival, and workers that take them.

The replica is a fluid in whole messages. Arrivals within one tick form one cohort with one time.
A tick serves `capacity · tick` messages, oldest cohorts first, and carries the fraction over. The
age of the oldest message is therefore exact to within a tick, and rounding loses no message. An
hour costs the same at ten messages per second as at a million.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import TYPE_CHECKING

from tidegate.core.decisions import MachineSample, ReplicaSample
from tidegate.core.machines import MachineState
from tidegate.core.topology import ReplicaState

if TYPE_CHECKING:
    from tidegate.simulation.plant import PlantSettings


class SimulatedReplica:
    """A replica and its workers."""

    __slots__ = (
        "allowance",
        "arrived",
        "capacity_factor",
        "cohorts",
        "consumed",
        "consumers",
        "in_service",
        "machine_id",
        "number",
        "producers",
        "reachable",
        "sampled_arrived",
        "sampled_consumed",
        "serving_since",
        "share",
        "state",
        "taken_at",
        "waited_s",
        "waiting",
        "waits",
    )

    def __init__(
        self, number: int, machine_id: int | None, waits: list[tuple[float, float]] | None = None
    ) -> None:
        self.number = number
        # List that receives pairs of waiting time and number of messages. `None` turns the
        # recording off.
        self.waits = waits
        self.machine_id = machine_id
        self.state = ReplicaState.STARTING
        # Whether the process runs.
        self.reachable = False
        self.share = 0.0
        self.capacity_factor = 1.0
        self.waiting = 0
        self.in_service = 0
        # Arrival time of the messages in service.
        self.taken_at = 0.0
        # Pairs of arrival time and number, the oldest first; `waiting` is the sum of the numbers.
        self.cohorts: deque[tuple[float, int]] = deque()
        # Service capacity left over from earlier ticks, below one message.
        self.allowance = 0.0
        self.arrived = 0
        self.consumed = 0
        # Summed over all consumed messages.
        self.waited_s = 0.0
        self.sampled_arrived = 0
        self.sampled_consumed = 0
        self.serving_since = 0.0
        self.producers = 0
        self.consumers = 0

    def put(self, count: int, at: float) -> None:
        """Add arriving messages."""
        self.cohorts.append((at, count))
        self.waiting += count
        self.arrived += count

    def serve(self, capacity_per_s: float, tick_s: float, now: float, in_service_max: int) -> float:
        """Work for a tick that ends at `now`, and return the longest wait of a finished message."""
        allowance = self.allowance + capacity_per_s * self.capacity_factor * tick_s
        due = int(allowance)
        longest_s = 0.0
        held = self.in_service
        if due < held:
            # Slow work: the messages in service stay there for more than a tick.
            self.allowance = allowance
            return 0.0
        if held:
            longest_s = max(0.0, now - self.taken_at)
            self.waited_s += held * longest_s
            if self.waits is not None:
                self.waits.append((longest_s, held))
            self.consumed += held
            self.in_service = 0
        done = held
        cohorts = self.cohorts
        while done < due and cohorts:
            came_at, count = cohorts[0]
            take = min(count, due - done)
            if take == count:
                cohorts.popleft()
            else:
                cohorts[0] = (came_at, count - take)
            done += take
            self.waiting -= take
            self.consumed += take
            waited_s = now - came_at
            self.waited_s += take * waited_s
            if self.waits is not None:
                self.waits.append((waited_s, take))
            if waited_s > longest_s:
                longest_s = waited_s
        # Idle workers accumulate no capacity, except for a fraction of a message.
        self.allowance = allowance - done if cohorts else min(allowance - done, 1.0 - 1e-9)
        if cohorts and in_service_max:
            self._take(in_service_max)
        return longest_s

    def _take(self, count_max: int) -> None:
        """Move waiting messages into service."""
        self.taken_at = self.cohorts[0][0]
        while self.in_service < count_max and self.cohorts:
            came_at, count = self.cohorts[0]
            take = min(count, count_max - self.in_service)
            if take == count:
                self.cohorts.popleft()
            else:
                self.cohorts[0] = (came_at, count - take)
            self.in_service += take
            self.waiting -= take

    def crash(self) -> None:
        """Stop the process. Messages in service wait again, in order of their arrival."""
        self.reachable = False
        self.allowance = 0.0
        if self.in_service:
            # Not always at the front: a transfer may have brought older messages meanwhile.
            self.take_over([(self.taken_at, self.in_service)])
            self.in_service = 0

    def give(self, count: int) -> list[tuple[float, int]]:
        """Remove up to `count` waiting messages for a transfer, the newest first.

        The newest messages would be served last here. Returns them as cohorts, the oldest first.
        """
        gone: list[tuple[float, int]] = []
        while count > 0 and self.cohorts:
            came_at, there = self.cohorts.pop()
            take = min(there, count)
            if take < there:
                self.cohorts.append((came_at, there - take))
            gone.append((came_at, take))
            self.waiting -= take
            count -= take
        return gone[::-1]

    def take_over(self, cohorts: list[tuple[float, int]]) -> None:
        """Insert messages from another replica by their arrival times."""
        self.cohorts = deque(sorted([*self.cohorts, *cohorts]))
        self.waiting += sum(count for _, count in cohorts)

    def oldest_age_s(self, now: float) -> float:
        """Return how long ago the oldest message that is not consumed yet arrived."""
        came_at = now
        if self.in_service:
            came_at = min(came_at, self.taken_at)
        if self.cohorts:
            # A transfer may bring messages that are older than those in service.
            came_at = min(came_at, self.cohorts[0][0])
        return now - came_at

    def sample(self, now: float, period_s: float) -> ReplicaSample:
        """Return the sample of the period that ends now, as the owner would report it."""
        arrived = self.arrived - self.sampled_arrived
        consumed = self.consumed - self.sampled_consumed
        self.sampled_arrived = self.arrived
        self.sampled_consumed = self.consumed
        return ReplicaSample(
            number=self.number,
            state=self.state,
            produced_per_s=arrived / period_s,
            consumed_per_s=consumed / period_s,
            waiting=self.waiting,
            unacknowledged=self.in_service,
            oldest_age_s=self.oldest_age_s(now),
            producers=self.producers,
            consumers=self.consumers,
            share=self.share,
            machine_id=self.machine_id,
            age_s=now - self.serving_since if self.state is not ReplicaState.STARTING else 0.0,
            reachable=self.reachable,
            waiting_consumers=0 if self.waiting or not self.reachable else max(self.consumers, 1),
        )


# Simulated machines: ordered, booting, then running with their slots, until halted.
#
# A machine costs from the order to the halt, booting included, as clouds bill it. A boot may fail
# at its end. A failed machine never counts as running, and costs nothing from then on.


_RUNNING = (MachineState.UP, MachineState.WARM)


class SimulatedMachine:
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


class SimulatedMachines:
    """All simulated machines of a run."""

    def __init__(self, settings: PlantSettings, chance: random.Random) -> None:
        self._settings = settings
        self._chance = chance
        self._next_id = 1
        self.by_id: dict[int, SimulatedMachine] = {}
        # Boots ordered during the run.
        self.ordered = 0
        self.paid_s = 0.0
        self.failed_boots = 0

    def boot(
        self, slots: int, now: float, *, warm: bool = False, at_once: bool = False
    ) -> SimulatedMachine:
        """Order a machine. With `at_once` it runs immediately and is not counted as ordered."""
        settings = self._settings
        boot_s = 0.0 if at_once else self._boot_s()
        machine = SimulatedMachine(self._next_id, slots, now + boot_s)
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

    def ready(self, now: float) -> list[SimulatedMachine]:
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
