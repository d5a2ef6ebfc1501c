"""Figures 4 to 8 with real processes: a ramp, workers with a rate, machines that take time to boot.

Strategy: time runs s times as fast as in the paper. Rates stay the paper's (workers of 100 msg/s),
so that growth is s times as steep, a boot takes 96.9/s seconds, and what piles up while one waits
for a boot is s times less: min_load and max_load are 50/s and 200/s messages.
Machines are process trees of the provider `process`, each with a node and its workers; a replica
delivers what a worker is stated to. Load is looked at from outside, several times a second.
A setup that begins with as many slots as the end of its ramp needs is refused: no boot would ever
be waited for, and nothing it tests could fail. The policy is the paper's; where 0 s above max_load
are asked for, ours runs on the same ramp, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.core.fleet import MachineState
from tidegate.core.replication import ReplicaState, logical_name
from tidegate.core.scaling import Range, Scaling, ScalingPolicy
from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.child import Child
from tidegate.lab.bench.processors import Processors
from tidegate.lab.elastic.figures import name_of
from tidegate.lab.elastic.ramp_process import Ramp
from tidegate.lab.elastic.worker_app import QUEUE
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.replicated.disturbance import disturbance
from tidegate.lab.report.experiments import ExperimentFailed, Progress
from tidegate.lab.report.figures import Line, Panel, draw_rows
from tidegate.lab.report.section import Drawing, Section
from tidegate.report.chart import Table

WORKER = "tidegate.lab.elastic.worker_app:app"
WORKER_PER_S = 100.0
RATE_MAX_PER_S = 750.0
MIN_LOAD, MAX_LOAD = 50.0, 200.0
BOOT_S = 96.9
SLOW_GROWTH, FAST_GROWTH = 0.5, 4.0
# The paper's period and safety interval are not printed; these are the simulation's.
POLLING_S, INHIBITION_S = 1.0, 10.0
# The loop turns no faster than this, however much time is pressed.
POLLING_S_MIN = 0.1
READY_TIMEOUT_S = 60.0
EMPTY_TIMEOUT_S = 30.0
HALVED_MIN, HALVED_MAX = 0.4, 0.6
# Of our own seconds: to notice, to decide, and to start a worker in a slot that is there.
STARTING_S = 3.0
# Figure 7: which worker has to wait for a boot.
_FIFTH = 5


class Setup(msgspec.Struct, frozen=True):
    """One figure of the paper."""

    name: str
    about: str
    paper: str
    growth_per_s2: float
    slots: int
    warm: int
    # What the issue asks for: 0 s above max_load.
    never_above: bool = False

    @property
    def slots_at_start(self) -> int:
        """Of the one machine that is up, and of those that are warm."""
        return self.slots * (1 + self.warm)

    @property
    def policies(self) -> tuple[ScalingPolicy, ...]:
        """The paper's; and ours beside it where the issue's bar is one for both."""
        if self.never_above:
            return (ScalingPolicy.LOAD, ScalingPolicy.FEED_FORWARD)
        return (ScalingPolicy.LOAD,)


SETUPS = (
    Setup("figure 4", "1 worker a machine, none warm", "peaks of overload", SLOW_GROWTH, 1, 0),
    Setup("figure 5", "2 workers a machine, none warm", "peaks halved", SLOW_GROWTH, 2, 0),
    Setup("figure 6", "2 workers, 1 machine warm", "no impact of boots", SLOW_GROWTH, 2, 1, True),
    Setup("figure 7", "eight times the ramp, 1 warm", "late at the 5th worker", FAST_GROWTH, 2, 1),
    Setup("figure 8", "eight times the ramp, 2 warm", "works properly", FAST_GROWTH, 2, 2, True),
)


class RealPlan(msgspec.Struct, frozen=True):
    """How much faster than the paper's the clock runs, and how far the ramp goes."""

    slow_scale: float = 10.0
    # The fast ramp is not pressed as much: starting a process takes as long as it takes.
    fast_scale: float = 4.0
    # The paper goes to 750; five workers are one more than figure 6 has slots for at the start.
    rate_max_per_s: float = 500.0
    # The fast ramp has six slots before its first message: only the seventh worker needs a boot.
    fast_rate_max_per_s: float = RATE_MAX_PER_S
    # Of the time that the ramp takes: how long its end is held.
    hold: float = 0.15
    look_every_s: float = 0.2
    setups: Sequence[str] = tuple(setup.name for setup in SETUPS)

    @staticmethod
    def quick() -> RealPlan:
        return RealPlan(slow_scale=60.0, rate_max_per_s=250.0, hold=0.5, setups=("figure 5",))

    @staticmethod
    def full() -> RealPlan:
        return RealPlan(slow_scale=5.0, fast_scale=2.0, rate_max_per_s=RATE_MAX_PER_S)

    @property
    def chosen(self) -> list[Setup]:
        return [setup for setup in SETUPS if setup.name in self.setups]

    def scale_of(self, setup: Setup) -> float:
        return self.slow_scale if setup.growth_per_s2 == SLOW_GROWTH else self.fast_scale

    def rate_max_of(self, setup: Setup) -> float:
        is_slow = setup.growth_per_s2 == SLOW_GROWTH
        return self.rate_max_per_s if is_slow else self.fast_rate_max_per_s

    def workers_needed(self, setup: Setup) -> int:
        """At the end of the ramp."""
        return _workers_for(self.rate_max_of(setup))

    def check(self) -> None:
        """Every setup needs a machine that is not there when it begins, or it shows nothing."""
        for setup in self.chosen:
            needed = self.workers_needed(setup)
            if setup.slots_at_start >= needed:
                raise ExperimentFailed(
                    f"{setup.name} cannot fail: it begins with {setup.slots_at_start} slots, and "
                    f"{self.rate_max_of(setup):g} msg/s need {needed} workers, so no boot is "
                    "waited for"
                )


def _workers_for(rate_per_s: float) -> int:
    return max(1, math.ceil(rate_per_s / WORKER_PER_S - 1e-9))


class Moment(msgspec.Struct, frozen=True):
    """What there was to see at one moment; times are the paper's."""

    at_s: float
    rate_per_s: float
    average_load: float
    waiting: int
    workers: int
    machines: int
    booting: int
    ideal: int


class RealRun(msgspec.Struct, frozen=True):
    """One figure, measured. Times and loads are the paper's: multiplied by the scale."""

    setup: Setup
    scale: float
    moments: list[Moment]
    peak_load: float
    above_s: float
    # Of those, with no slot free: what a boot has to be waited for. The law adds a worker when
    # max_load is exceeded, so it always is while one starts in a slot that is there.
    late_s: float
    workers_max: int
    machines_max: int
    # How many workers served when one was late for the first time.
    workers_when_late: int | None
    confirmed: int
    boot_s_mean: float | None = None
    policy: ScalingPolicy = ScalingPolicy.LOAD

    @property
    def name(self) -> str:
        """The figure; and whose policy, where it is not the paper's."""
        return named(self.setup, self.policy)


def named(setup: Setup, policy: ScalingPolicy) -> str:
    return setup.name if policy is ScalingPolicy.LOAD else f"{setup.name}, {policy.value}"


def real_section(plan: RealPlan, folder: Path, progress: Progress) -> Section:
    """Measure, draw, judge."""
    plan.check()
    processors = Processors()
    start_s = _start_s()
    progress(f"a machine without a stated boot time joins after {start_s:.1f} s")
    runs = {}
    for setup in plan.chosen:
        for policy in setup.policies:
            run = _run(setup, policy, plan, start_s)
            runs[run.name] = run
            progress(
                f"{run.name} (time × {run.scale:g}): peak load {run.peak_load:,.0f}, "
                f"{run.above_s:.0f} s above {MAX_LOAD:g}, {run.late_s:.0f} s late, "
                f"{run.workers_max} workers on {run.machines_max} machines"
            )
    return section_of(runs, plan, processors.share_of_others(), folder)


def _start_s() -> float:
    """How long a machine of ours takes to join, with nothing added to stand for a cloud."""
    with tidegate_server(settings={"TIDEGATE_FLEET__PROVIDER": "process"}) as server:
        url = f"tidegate://127.0.0.1:{server.port}"
        with tidegate.connect(url, mode="admin") as control:
            control.create_queue(QUEUE, durable=True)
            control.set_scaling(QUEUE, Scaling(worker=WORKER))
            _until_ready(control, 1, 0)
            return max(_boots(control))


def _boots(control: BlockingClient) -> list[float]:
    return [
        machine.joined_at - machine.ordered_at
        for machine in control.fleet().machines
        if machine.joined_at is not None
    ]


def _run(setup: Setup, policy: ScalingPolicy, plan: RealPlan, start_s: float) -> RealRun:
    scale, rate_max_per_s = plan.scale_of(setup), plan.rate_max_of(setup)
    settings = {
        "TIDEGATE_FLEET__PROVIDER": "process",
        # Starting a process and joining is part of a boot: only what is missing is added.
        "TIDEGATE_FLEET__BOOT_S": f"{max(BOOT_S / scale - start_s, 0.0):.3f}",
        "TIDEGATE_FLEET__SLOTS": str(setup.slots),
        "TIDEGATE_FLEET__LIST_INTERVAL": "500ms",
        "TIDEGATE_FLEET__DRAIN": "5s",
    }
    scaling = Scaling(
        replicas=Range(1, 16),
        policy=policy,
        min_load=MIN_LOAD / scale,
        max_load=MAX_LOAD / scale,
        slots_per_machine=setup.slots,
        warm=setup.warm,
        boot_s=BOOT_S / scale,
        polling_interval_s=max(POLLING_S / scale, POLLING_S_MIN),
        # The safety interval is there for a decision to take effect: never less than that takes.
        inhibition_s=max(INHIBITION_S / scale, STARTING_S),
        cooldown_period_s=60.0 / scale,
        rate_max_per_s=WORKER_PER_S,
        worker=WORKER,
    )
    with tidegate_server(settings=settings) as server:
        url = f"tidegate://127.0.0.1:{server.port}"
        with tidegate.connect(url, mode="admin") as control:
            control.create_queue(QUEUE, durable=True)
            control.set_scaling(QUEUE, scaling)
            _until_ready(control, 1, setup.warm)
            growing_s = rate_max_per_s / (setup.growth_per_s2 * scale)
            ramp = Ramp(
                url,
                QUEUE,
                setup.growth_per_s2 * scale,
                rate_max_per_s,
                growing_s * (1 + plan.hold),
            )
            moments, confirmed = _watched(control, ramp, plan, scale)
            _until_consumed(control, confirmed)
            boots = _boots(control)
            control.set_scaling(
                QUEUE, msgspec.structs.replace(scaling, replicas=Range(1, 1), warm=0)
            )
    return judged(setup, scale, moments, confirmed, boots, policy)


def _until_ready(control: BlockingClient, workers: int, warm: int) -> None:
    """The first worker serves, and warm machines are warm, before the first message comes."""
    end_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        serving = _serving(control)
        machines = control.fleet().machines
        if serving >= workers and _count(machines, MachineState.WARM) >= warm:
            return
        if time.monotonic() > end_s:
            raise ExperimentFailed(
                f"after {READY_TIMEOUT_S:g} s {serving} workers serve and machines are "
                f"{', '.join(one.state for one in machines) or 'none'}"
            )
        time.sleep(0.1)


def _serving(control: BlockingClient) -> int:
    return sum(place.state is ReplicaState.SERVING for place in control.topology(QUEUE).replicas)


def _count(machines: Sequence[object], *states: MachineState) -> int:
    return sum(getattr(machine, "state", None) in states for machine in machines)


def _watched(
    control: BlockingClient, ramp: Ramp, plan: RealPlan, scale: float
) -> tuple[list[Moment], int]:
    module = "tidegate.lab.elastic.ramp_process"
    moments: list[Moment] = []
    with Child(module, [msgspec.json.encode(ramp).decode()]) as child:
        child.hear(str, READY_TIMEOUT_S)
        child.say("go")
        begun_s = time.monotonic()
        while not child.has_answered(plan.look_every_s):
            elapsed_s = time.monotonic() - begun_s
            moments.append(_moment(control, ramp, elapsed_s, scale))
            if elapsed_s > 2 * ramp.seconds + READY_TIMEOUT_S:
                raise ExperimentFailed("the ramp's messages were not confirmed in time")
        return moments, child.hear(int, READY_TIMEOUT_S)


def _moment(control: BlockingClient, ramp: Ramp, elapsed_s: float, scale: float) -> Moment:
    waiting = sum(
        queue.waiting
        for node in control.stats().nodes
        for queue in node.queues
        if logical_name(queue.name) == QUEUE
    )
    workers = _serving(control)
    machines = control.fleet().machines
    rate = ramp.rate_per_s(elapsed_s)
    return Moment(
        at_s=scale * elapsed_s,
        rate_per_s=rate,
        average_load=scale * waiting / max(workers, 1),
        waiting=waiting,
        workers=workers,
        machines=_count(machines, MachineState.UP, MachineState.WARM),
        booting=_count(machines, MachineState.BOOTING),
        ideal=_workers_for(rate),
    )


def _until_consumed(control: BlockingClient, confirmed: int) -> None:
    """Everything that was confirmed is consumed in the end, and nothing is left."""
    end_s = time.monotonic() + EMPTY_TIMEOUT_S
    while True:
        queues = [
            queue
            for node in control.stats().nodes
            for queue in node.queues
            if logical_name(queue.name) == QUEUE
        ]
        left = sum(queue.waiting + queue.unacknowledged for queue in queues)
        if not left:
            return
        if time.monotonic() > end_s:
            raise ExperimentFailed(
                f"{left} of {confirmed} messages still wait {EMPTY_TIMEOUT_S:g} s after the end"
            )
        time.sleep(0.2)


def judged(
    setup: Setup,
    scale: float,
    moments: list[Moment],
    confirmed: int,
    boots: list[float],
    policy: ScalingPolicy = ScalingPolicy.LOAD,
) -> RealRun:
    above_s = late_s = before_s = 0.0
    when_late: int | None = None
    for moment in moments:
        lasted_s = moment.at_s - before_s
        before_s = moment.at_s
        if moment.average_load <= MAX_LOAD:
            continue
        above_s += lasted_s
        if moment.workers >= setup.slots * moment.machines:
            late_s += lasted_s
            when_late = moment.workers if when_late is None else when_late
    return RealRun(
        setup=setup,
        scale=scale,
        moments=moments,
        peak_load=max(moment.average_load for moment in moments),
        above_s=above_s,
        late_s=late_s,
        workers_max=max(moment.workers for moment in moments),
        machines_max=max(moment.machines + moment.booting for moment in moments),
        workers_when_late=when_late,
        confirmed=confirmed,
        boot_s_mean=scale * sum(boots) / len(boots) if boots else None,
        policy=policy,
    )


def section_of(runs: dict[str, RealRun], plan: RealPlan, others: float, folder: Path) -> Section:
    """Draw and judge what was measured."""
    for run in runs.values():
        _draw(run, folder / _file(run))
    return Section(
        name="ramps",
        title="The ramp with real processes",
        source="Elastic queues §IV, figures 4 to 8",
        paper=(
            "Boots cause peaks of overload; two workers a machine halve them; one warm machine "
            "removes them; with eight times the ramp one is not enough and two are."
        ),
        ours=" ".join(
            f"{name.capitalize()}: peak {run.peak_load:,.0f}, {run.above_s:.0f} s above "
            f"{MAX_LOAD:g}, {run.late_s:.0f} s of it late."
            for name, run in runs.items()
        ),
        drawings=[
            Drawing(
                _file(run),
                f"{name.capitalize()}: {run.setup.about}; time and load × {run.scale:g}. The "
                f"paper prints no load here but says: {run.setup.paper}.",
            )
            for name, run in runs.items()
        ],
        tables=[
            Table(
                "Times and loads in the paper's units",
                [
                    *("", "setup", "policy", "the paper", "time ×", "peak load"),
                    *("s above 200", "of it late", "slots at first", "workers", "machines"),
                    "boot s",
                ],
                [
                    [
                        run.setup.name,
                        run.setup.about,
                        name_of(run.policy.value),
                        run.setup.paper,
                        f"{run.scale:g}",
                        f"{run.peak_load:,.0f}",
                        f"{run.above_s:.0f}",
                        f"{run.late_s:.0f}",
                        str(run.setup.slots_at_start),
                        str(run.workers_max),
                        str(run.machines_max),
                        "–" if run.boot_s_mean is None else f"{run.boot_s_mean:.0f}",
                    ]
                    for run in runs.values()
                ],
            )
        ],
        bars=bars_of(runs),
        notes=[
            f"Time runs {plan.slow_scale:g} times as fast as in the paper ({plan.fast_scale:g} "
            "times in figures 7 and 8); rates are the paper's, so loads are that many times "
            "smaller and are shown multiplied again.",
            "A replica has a stated limit of 100 messages/s, which stands for its worker: two "
            "cores do not show what eight machines did.",
            "Policy load looks a worker's start ahead, of the clock's seconds; a load is believed "
            "to double at most. Late is above max_load with no slot free: a machine has to be "
            "waited for. Bars about it are ours, beyond the issue.",
            f"Ramps end at {plan.rate_max_per_s:g} messages/s, the fast ones at "
            f"{plan.fast_rate_max_per_s:g}: for more workers than there are slots at the start, "
            "so that every setup needs a machine that is not there yet.",
            "feed-forward runs with its defaults; its averages and its memory are in seconds of "
            "the clock, and are not pressed with the ramp.",
            "A boot is the start of our own processes and as much waiting as is missing to 96.9 s "
            "divided by the factor; on a busy machine it is longer, and the table says how long.",
            *disturbance(others),
        ],
        data={
            "time_scale": {"slow": plan.slow_scale, "fast": plan.fast_scale},
            "runs": {name: msgspec.to_builtins(run) for name, run in runs.items()},
        },
    )


def bars_of(runs: dict[str, RealRun]) -> list[Bar]:
    """The issue's own, and ours about waiting for machines."""
    bars = []
    if "figure 4" in runs and "figure 5" in runs:
        ratio = runs["figure 5"].peak_load / max(runs["figure 4"].peak_load, 1e-9)
        name = "peak load with two workers a machine, of that with one"
        bars += [
            Bar(name, ratio, HALVED_MAX, "×", at_most=True),
            Bar(name, ratio, HALVED_MIN, "×"),
        ]
    bars += [
        Bar(
            f"{run.setup.name}, {run.setup.about}: seconds above max_load, policy "
            f"{name_of(run.policy.value)}",
            run.above_s,
            0.0,
            "s",
            at_most=True,
        )
        for run in runs.values()
        if run.setup.never_above
    ]
    bars += [
        Bar(
            f"{run.setup.name}, {run.setup.about}: seconds above max_load, late",
            run.late_s,
            0.0,
            "s",
            at_most=True,
            beyond_the_issue=True,
        )
        for run in runs.values()
        if run.setup.never_above and run.policy is ScalingPolicy.LOAD
    ]
    if "figure 7" in runs:
        late = runs["figure 7"]
        name = f"{late.setup.name}, {late.setup.about}"
        awaited = None if late.workers_when_late is None else late.workers_when_late + 1
        bars += [
            Bar(
                f"{name}: the worker that is waited for, away from the fifth",
                # Nobody was waited for: as far away as can be.
                float(_FIFTH if awaited is None else abs(awaited - _FIFTH)),
                0.0,
                "workers",
                at_most=True,
            ),
            Bar(
                f"{name}: seconds above max_load, late",
                late.late_s,
                1.0,
                "s",
                beyond_the_issue=True,
            ),
        ]
    return bars


def _file(run: RealRun) -> str:
    return f"ramps-{run.name.replace(',', '').replace(' ', '-')}.png"


def _draw(run: RealRun, file: Path) -> None:
    at_s = [moment.at_s for moment in run.moments]
    draw_rows(
        [
            Panel(
                f"{run.name.capitalize()}: {run.setup.about}",
                "seconds",
                "average load",
                [Line("load", at_s, [one.average_load for one in run.moments], colour="#1f6fb2")],
                levels={"max_load": MAX_LOAD},
            ),
            Panel(
                "Workers and machines",
                "seconds",
                "count",
                [
                    Line("workers", at_s, [float(m.workers) for m in run.moments]),
                    Line("machines", at_s, [float(m.machines) for m in run.moments]),
                    Line("ideal", at_s, [float(m.ideal) for m in run.moments], dashed=True),
                ],
                whole=True,
            ),
        ],
        file,
    )
