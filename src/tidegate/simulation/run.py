"""A simulation run: the real control loops, unchanged, against the simulated plant.

Theory of operation

**Actors.** A run consists of a trace reader (arrivals), the plant (queue, replicas, machines), the
autoscaler of the queue, and the provisioner of the fleet. Autoscaler and provisioner are the
classes that control real queues. They have no clock and do no I/O, so they run in virtual time.
With an agreement, a `SimulatedAgreement` judges every tick.

**Time.** The polling interval is divided into equal ticks of at most `plant.tick_s`. In each tick,
faults and client changes take effect, arrivals come, and the plant works. At the end of each
polling interval the queue's loop reads a sample, decides, and the plant executes the decision.
About once per second the fleet's loop places ordered replicas and orders machines. It runs after
the queue's loop, as in a real node, so that an ordered replica is placed at once.

**Measurement.** Results are collected at every tick. So policies that poll rarely and policies that
poll often are judged by the same seconds. Nothing here depends on the law of a policy.

**Faults of measurement.** During STALE the loop gets its last sample with a growing age; during NAN
the rates of the sample are NaN. The loop has to hold in both cases.

**Invariants.** The same scenario and seed give the same result, byte for byte. In mode RECOMMEND
the run executes no decision except shares, transfers and migrations, as the real loop does.

**Failures.** An invalid scenario raises `InvalidValue` before the run. A run itself does not fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from tidegate.control.provisioning import Provisioner, SlotRequest
from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.core.decisions import (
    Decision,
    Exchange,
    MachineSample,
    Migrate,
    QueueSample,
    SetShares,
)
from tidegate.core.machines import MachineState
from tidegate.core.topology import ControlMode, ReplicaState
from tidegate.laws.scaling.feed_forward import FeedForwardSettings
from tidegate.laws.scaling.load import DEFAULT_LOAD_LAW_SETTINGS, LoadLawSettings
from tidegate.simulation.plant import FaultKind, SimulatedPlant
from tidegate.simulation.traces import (
    QUEUE,
    SimulatedAgreement,
    SimulationScenario,
    TraceReader,
    with_agreement_terms,
)

# Rows of a series; more than a screen has pixels to draw.
ROWS_MAX = 2_000
# Number of explained decisions that are kept.
_EXPLAINED_MAX = 500
_FLEET_INTERVAL_S = 1.0

Progress = Callable[[float], None]


def simulate(
    scenario: SimulationScenario,
    seed: int = 1,
    *,
    progress: Progress | None = None,
    record: bool = True,
    elasticity: LoadLawSettings = DEFAULT_LOAD_LAW_SETTINGS,
    feed_forward: FeedForwardSettings | None = None,
) -> SimulationResult:
    """Run a scenario from start to end, and return the result.

    `progress` is called with the completed fraction, about twenty times. `record=False` omits
    series and explained decisions. `elasticity` and `feed_forward` set the laws, so that they can
    be tuned.
    """
    autoscaler = Autoscaler(
        with_agreement_terms(scenario.scaling), elasticity=elasticity, feed_forward=feed_forward
    )
    run = _Run(scenario, seed, autoscaler, record=record)
    shown = 0
    while not run.ended:
        run.poll_period()
        if progress is not None and int(20 * run.done) > shown:
            shown = int(20 * run.done)
            progress(run.done)
    return run.outcome()


class _Run:
    """The state of one run."""

    def __init__(
        self, scenario: SimulationScenario, seed: int, autoscaler: Autoscaler, *, record: bool
    ) -> None:
        scaling, settings = autoscaler.scaling, scenario.plant
        self._scenario = scenario
        self._seed = seed
        self._record = record
        self._duration_s = scenario.trace.duration_s
        self._reader = TraceReader(scenario.trace)
        self._plant = SimulatedPlant(
            QUEUE, settings, scaling.slots_per_machine, f"{scenario.name} {seed}"
        )
        self._autoscaler = autoscaler
        self._provisioner = Provisioner(machines_max=settings.machines_max)
        self._judged = (
            None if scaling.agreement is None else SimulatedAgreement(scaling, self._plant)
        )
        polling_s = scaling.polling_interval_s
        self._ticks = max(1, math.ceil(polling_s / settings.tick_s - 1e-9))
        self._tick_s = polling_s / self._ticks
        self._fleet_every = max(1, round(_FLEET_INTERVAL_S / self._tick_s))
        self._ticked = 0
        self._faults = sorted(scenario.faults, key=lambda one: one.at_s)
        self._clients = sorted(scenario.clients, key=lambda one: one.at_s)
        self._blind_until = self._nan_until = self._slow_until = -1.0
        self._last_sample: QueueSample | None = None
        self._fleet_at_rest: tuple[list[MachineSample], int] | None = None
        self._series = SimulationSeries()
        self._record_every = max(1, math.ceil(self._duration_s / self._tick_s / ROWS_MAX))
        self._recorded_arrived = 0
        self._explained: list[ExplainedDecision] = []
        self._decisions = 0
        self._above_s = self._late_s = self._peak = self._load_s = 0.0
        self._above_since = 0.0
        self._replicas_peak = self._machines_peak = 0
        self._ideal_s = self._replica_s = 0.0
        self._start()

    def _start(self) -> None:
        """Start the minimum of replicas and the warm machines before the first message."""
        plant, scaling = self._plant, self._scenario.scaling
        plant.pending = scaling.replicas.min
        machines = math.ceil(scaling.replicas.min / scaling.slots_per_machine)
        while plant.machines.running() < machines:
            plant.machines.boot(scaling.slots_per_machine, 0.0, at_once=True)
        for _ in range(scaling.warm or 0):
            plant.machines.boot(scaling.slots_per_machine, 0.0, warm=True, at_once=True)
        for machine_id in list(plant.machines.by_id):
            for _ in range(scaling.slots_per_machine):
                if plant.pending:
                    plant.place(machine_id, at_once=True)

    @property
    def ended(self) -> bool:
        return self._plant.now >= self._duration_s - 1e-9

    @property
    def done(self) -> float:
        """The completed fraction of the run."""
        return self._plant.now / self._duration_s

    def poll_period(self) -> None:
        """Run one polling interval of the queue's loop."""
        for turn in range(self._ticks):
            if self.ended:
                return
            self._tick()
            self._ticked += 1
            if turn == self._ticks - 1:
                self._steer_queue()
            # After the queue's loop, as in a real node: what it orders is placed at once.
            if self._ticked % self._fleet_every == 0:
                self._steer_fleet()

    def _tick(self) -> None:
        plant, tick_s = self._plant, self._tick_s
        self._make_faults()
        start_s = plant.now
        expected = self._reader.messages(start_s, start_s + tick_s)
        service_ms = self._reader.service_ms
        capacity = self._capacity(service_ms)
        plant.tick(tick_s, expected, capacity)
        if self._judged is not None:
            self._judged.tick(tick_s)
        self._measure(expected, capacity)

    def _capacity(self, service_ms: float | None) -> float:
        if service_ms is None:
            return self._scenario.plant.capacity_per_s
        return 1000.0 / service_ms * self._scenario.scaling.workers_per_replica

    # Control loops

    def _steer_queue(self) -> None:
        sample = self._seen(self._plant.sample(keeps_warm=self._want.warm_wanted > 0))
        if self._judged is None:
            decision = self._autoscaler.decide(sample)
        else:
            pledge = self._judged.wait_target(self._autoscaler.lead_s)
            decision = self._autoscaler.decide(sample, pledge, self._judged.capacity_per_s)
        self._execute(decision)

    @property
    def _want(self) -> SlotRequest:
        """Return the slots that the queue requests from the fleet."""
        guess = None if self._judged is None else self._judged.capacity_per_s
        return SlotRequest.of(QUEUE, self._autoscaler.scaling, self._plant.wanted_slots, guess)

    def _steer_fleet(self) -> None:
        plant = self._plant
        seen = (plant.machine_samples(), plant.wanted_slots)
        # The provisioner has no clock and no memory: the same samples give the same empty decision.
        if seen == self._fleet_at_rest:
            return
        decision = self._provisioner.decide(seen[0], [self._want], plant.now)
        self._fleet_at_rest = None if decision.actions else seen
        self._execute(decision)

    def _execute(self, decision: Decision) -> None:
        self._decisions += 1
        recommended = self._scenario.scaling.steering is ControlMode.RECOMMEND
        for action in decision.actions:
            # As in the real loop, actions among existing replicas are executed even if only
            # recommended.
            if not recommended or isinstance(action, SetShares | Exchange | Migrate):
                self._plant.execute(action)
        if self._record and decision.is_worth_keeping and len(self._explained) < _EXPLAINED_MAX:
            self._explained.append(
                ExplainedDecision(
                    t_s=round(self._plant.now, 3),
                    loop=decision.loop,
                    rule=decision.rule,
                    actions=[
                        f"{type(action).__name__}({_arguments(action)})"
                        for action in decision.actions
                        if type(action).__name__ != "SetShares"
                    ],
                    reason=decision.reason,
                )
            )

    def _seen(self, sample: QueueSample) -> QueueSample:
        """Return the sample as the loop reads it: stale or broken while a fault lasts."""
        now = self._plant.now
        if now <= self._blind_until and self._last_sample is not None:
            # The loop's clock advances while the measurements age.
            return msgspec.structs.replace(
                self._last_sample, at=now, age_s=now - self._last_sample.at
            )
        self._last_sample = sample
        if now <= self._nan_until:
            broken = [
                msgspec.structs.replace(one, consumed_per_s=math.nan, oldest_age_s=math.nan)
                for one in sample.replicas
            ]
            return msgspec.structs.replace(sample, replicas=broken, arrived_per_s=math.nan)
        return sample

    # Faults and clients

    def _make_faults(self) -> None:
        plant, now = self._plant, self._plant.now
        while self._clients and self._clients[0].at_s <= now:
            change = self._clients.pop(0)
            plant.change_clients(change.role, change.count)
        if now > self._slow_until > 0.0:
            self._slow_until = -1.0
            plant.set_speed(1.0)
        while self._faults and self._faults[0].at_s <= now:
            fault = self._faults.pop(0)
            until = now + fault.duration_s
            match fault.kind:
                case FaultKind.MACHINE:
                    plant.kill_machine()
                case FaultKind.REPLICA:
                    plant.kill_replica()
                case FaultKind.STALE:
                    self._blind_until = until
                case FaultKind.NAN:
                    self._nan_until = until
                case FaultKind.SLOW:
                    self._slow_until = until
                    plant.set_speed(0.5)

    # Measurements

    def _measure(self, expected: float, capacity_per_s: float) -> None:
        plant, tick_s, max_load = self._plant, self._tick_s, self._scenario.scaling.max_load
        load = plant.average_load
        self._load_s += load * tick_s
        if load > self._peak:
            self._peak = load
        if load > max_load:
            self._above_s += tick_s
            self._above_since += tick_s
            if self._above_since > self._scenario.scaling.polling_interval_s + 1e-9:
                self._late_s += tick_s
        else:
            self._above_since = 0.0
        rate = expected / tick_s
        ideal = max(self._scenario.scaling.replicas.min, math.ceil(rate / capacity_per_s - 1e-9))
        self._ideal_s += math.ceil(ideal / self._scenario.scaling.slots_per_machine) * tick_s
        self._replica_s += len(plant.replicas) * tick_s
        self._replicas_peak = max(self._replicas_peak, len(plant.replicas))
        self._machines_peak = max(self._machines_peak, len(plant.machines.by_id))
        if self._record and self._ticked % self._record_every == 0:
            self._keep(load, ideal)

    def _keep(self, load: float, ideal: int) -> None:
        plant, series = self._plant, self._series
        since_s = plant.now - series.t_s[-1] if series.t_s else plant.now
        came, self._recorded_arrived = plant.arrived - self._recorded_arrived, plant.arrived
        replicas = plant.replicas.values()
        states = [one.state for one in replicas]
        machines = [one.state for one in plant.machines.by_id.values()]
        series.t_s.append(round(plant.now, 3))
        series.rate_per_s.append(round(came / since_s, 3))
        series.average_load.append(round(load, 3))
        waiting = {str(one.number): one.waiting for one in replicas}
        if plant.alias.waiting:
            waiting["0"] = plant.alias.waiting
        series.waiting.append(waiting)
        series.oldest_age_s.append(round(plant.oldest_age_s, 3))
        series.replicas.append(states.count(ReplicaState.SERVING))
        series.draining.append(states.count(ReplicaState.DRAINING))
        series.ordered.append(plant.pending + states.count(ReplicaState.STARTING))
        series.machines.append(plant.machines.running())
        series.booting.append(machines.count(MachineState.BOOTING))
        series.ideal.append(ideal)

    def outcome(self) -> SimulationResult:
        """Return the result with rounded numbers."""
        plant, scenario = self._plant, self._scenario
        return SimulationResult(
            scenario=scenario.name,
            policy=scenario.scaling.policy.value,
            seed=self._seed,
            duration_s=round(plant.now, 3),
            max_load=scenario.scaling.max_load,
            capacity_per_s=scenario.plant.capacity_per_s,
            arrived=plant.arrived,
            consumed=plant.consumed,
            waiting_at_end=plant.waiting,
            in_service_at_end=plant.in_service,
            average_load_peak=round(self._peak, 3),
            average_load_mean=round(self._load_s / plant.now, 3),
            above_s=round(self._above_s, 3),
            late_s=round(self._late_s, 3),
            machine_s=round(plant.machines.paid_s, 3),
            machine_s_ideal=round(self._ideal_s, 3),
            replicas_peak=self._replicas_peak,
            machines_peak=self._machines_peak,
            boots=plant.machines.ordered,
            failed_boots=plant.machines.failed_boots,
            reversals=reversals_of(plant.turns),
            cancelled_drains=plant.cancelled_drains,
            wait_s_mean=round(plant.waited_s / max(plant.consumed, 1), 3),
            wait_s_max=round(plant.longest_wait_s, 3),
            decisions=self._decisions,
            replica_s=round(self._replica_s, 3),
            windows_met=None if self._judged is None else self._judged.counts.met,
            windows_warned=None if self._judged is None else self._judged.counts.warned,
            windows_breached=None if self._judged is None else self._judged.counts.breached,
            series=self._series,
            explained=self._explained,
        )


def _arguments(action: object) -> str:
    fields: tuple[str, ...] = action.__struct_fields__  # type: ignore[attr-defined]
    return ", ".join(f"{name}={getattr(action, name)}" for name in fields)


# The result of a simulation run: numbers for comparing policies, and series for drawing.


class SimulationSeries(msgspec.Struct, kw_only=True):
    """The state at each recorded time; all columns have the same length."""

    t_s: list[float] = []
    # Arrival rate since the previous recorded time.
    rate_per_s: list[float] = []
    average_load: list[float] = []
    # Waiting messages by replica number; "0" is the alias.
    waiting: list[dict[str, int]] = []
    oldest_age_s: list[float] = []
    # Replicas that serve, and ordered ones that do not serve yet.
    replicas: list[int] = []
    ordered: list[int] = []
    draining: list[int] = []
    # Machines that run, and machines that boot.
    machines: list[int] = []
    booting: list[int] = []
    # ceil(rate / capacity): the smallest number of replicas that handles the arrivals.
    ideal: list[int] = []


class ExplainedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with actions, described for people."""

    t_s: float
    loop: str
    rule: str
    actions: Sequence[str]
    reason: str


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. The same scenario and seed give the same bytes of JSON."""

    scenario: str
    policy: str
    seed: int
    duration_s: float
    max_load: float
    capacity_per_s: float
    arrived: int
    consumed: int
    waiting_at_end: int
    in_service_at_end: int
    # Waiting messages per serving replica.
    average_load_peak: float
    average_load_mean: float
    # Seconds with an average load above max_load.
    above_s: float
    # The same without the first polling interval of each excursion, in which it was noticed.
    late_s: float
    machine_s: float
    # Smallest possible machine-seconds: ideal replicas without boot times.
    machine_s_ideal: float
    replicas_peak: int
    machines_peak: int
    boots: int
    failed_boots: int
    # Changes of direction between added and removed replicas.
    reversals: int
    cancelled_drains: int
    wait_s_mean: float
    wait_s_max: float
    decisions: int
    # Replica-seconds in any state.
    replica_s: float = 0.0
    # Windows of the agreement by verdict. `None` means that there is no agreement.
    windows_met: int | None = None
    windows_warned: int | None = None
    windows_breached: int | None = None
    series: SimulationSeries
    explained: Sequence[ExplainedDecision] = ()

    def summary(self) -> dict[str, Any]:
        """Return the numbers without the series and decisions."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["series"], plain["explained"]
        return plain

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def reversals_of(turns: Sequence[int]) -> int:
    """Return how often the direction changed."""
    return sum(before != after for before, after in pairwise(turns))
