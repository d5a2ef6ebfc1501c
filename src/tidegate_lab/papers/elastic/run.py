"""`tidegate lab run elastic-queues`: the experiments of the elastic queues paper.

Theory of operation

The paper scales a queue with its load: machines boot for 96.9 s, each holds one or two workers, and
a worker handles 100 messages per second. There are three kinds of experiments.

- `queues` measures what one, two and four queues deliver on one machine (figure 3,
  `queues_per_machine`).
- `ramps` repeats figures 4 to 8 with real processes (`real`). Machines are process trees, time runs
  faster than in the paper by a stated factor, and the product's own control loop scales.
- With `--simulate`, `simulated` repeats figures 4 to 8 in virtual time at the paper's own numbers.
  It also compares the product's policies on hundreds of generated traces (`traces`, `contest`).

The main result of a run is the time for which the average load (waiting messages per worker) was
above `max_load`. A part of it is *late*: no slot was free, so a machine had to boot first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.core.machines import MachineState
from tidegate.core.topology import Range, ReplicaState, Scaling, ScalingPolicy, logical_name
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_rows, name_of
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.loadgen.processes import Child
from tidegate_lab.papers.elastic.queues_per_machine import QueuesPlan, queues_per_machine_section
from tidegate_lab.papers.elastic.ramp_process import Ramp
from tidegate_lab.papers.elastic.worker_app import QUEUE
from tidegate_lab.papers.replicated.cluster import disturbance
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.report import (
    RESULTS,
    Drawing,
    ExperimentFailed,
    ExperimentSection,
    ExperimentsReport,
    Progress,
    chosen_from,
    folder_of,
    run_experiments,
)


class ElasticOptions(msgspec.Struct, frozen=True):
    """Which experiments to run, how large, and where the results go."""

    only: Sequence[str] = ()
    # Use slower clocks and the paper's whole ramp; takes most of an hour.
    full: bool = False
    quick: bool = False
    results: Path = RESULTS
    # The folder below `results/elastic-queues`; `None` uses the time of the run.
    name: str | None = None

    def experiments(self) -> list[str]:
        """Return the chosen experiments in their order; raise `ValueError` if a name is unknown."""
        return chosen_from(list(EXPERIMENTS), self.only)


def _queues(options: ElasticOptions, folder: Path, progress: Progress) -> ExperimentSection:
    plan = QueuesPlan.quick() if options.quick else QueuesPlan()
    return queues_per_machine_section(QueuesPlan.full() if options.full else plan, folder, progress)


def _ramps(options: ElasticOptions, folder: Path, progress: Progress) -> ExperimentSection:
    plan = RealPlan.quick() if options.quick else RealPlan()
    return real_section(RealPlan.full() if options.full else plan, folder, progress)


_Make = Callable[[ElasticOptions, Path, Progress], ExperimentSection]

EXPERIMENTS: dict[str, _Make] = {"queues": _queues, "ramps": _ramps}


def run_elastic(
    options: ElasticOptions, progress: Progress = lambda line: None
) -> ExperimentsReport:
    """Run the chosen experiments, and write their results."""

    def bound(make: _Make) -> Callable[[Path, Progress], ExperimentSection]:
        return lambda folder, progress: make(options, folder, progress)

    return run_experiments(
        {name: bound(EXPERIMENTS[name]) for name in options.experiments()},
        folder=folder_of(options.results, "elastic-queues", options.name),
        title="The elastic queues paper's experiments on Tidegate",
        theirs="Elastic queues",
        introduction=(
            "The paper ran on small machines in Amazon's cloud; this ran on one, with machines as "
            "process trees, workers of a stated rate and time scaled by a factor that is printed. "
            "With --simulate the same loops run at the paper's own numbers in virtual time."
            + (" A quick run: it shows that everything works." if options.quick else "")
        ),
        progress=progress,
    )


# Figures 4 to 8 with real processes: a ramp, workers with a rate, machines that take time to boot.
#
# Theory of operation
#
# Time runs s times as fast as in the paper, while rates are the paper's (100 msg/s per worker). The
# growth of the rate is therefore s times as steep, and a boot takes 96.9/s seconds. During a boot s
# times fewer messages accumulate, so `min_load` and `max_load` are 50/s and 200/s messages. Results
# are converted back to the paper's times and loads.
#
# 1. `_start_s` measures how long a machine takes to start without an added delay.
# 2. For each figure, `_run` starts a node and the fleet. Machines are process trees of the provider
#    `process`, each with a node and workers. The provider delays a machine's start so that its boot
#    takes 96.9/s seconds in total. A replica has a configured limit of 100 msg/s, which represents
#    its worker.
# 3. A child process (`ramp_process`) puts messages at the rate of the ramp, regardless of the
# queue.
#    Meanwhile `_watched` samples load, workers and machines several times a second.
# 4. At the end all confirmed messages must have been consumed.
#
# A figure that begins with enough slots for the end of its ramp is refused: no boot would be
# needed,
# and its bars could not fail. The policy is the paper's. Where the paper claims 0 s above
# `max_load`,
# our policy runs on the same ramp too.


WORKER = "tidegate_lab.papers.elastic.worker_app:app"
WORKER_PER_S = 100.0
RATE_MAX_PER_S = 750.0
MIN_LOAD, MAX_LOAD = 50.0, 200.0
BOOT_S = 96.9
SLOW_GROWTH, FAST_GROWTH = 0.5, 4.0
# The paper does not print its period and safety interval; these are the simulation's.
POLLING_S, INHIBITION_S = 1.0, 10.0
# The loop's shortest period, however fast time runs.
POLLING_S_MIN = 0.1
READY_TIMEOUT_S = 60.0
EMPTY_TIMEOUT_S = 30.0
HALVED_MIN, HALVED_MAX = 0.4, 0.6
# Real seconds to notice, decide, and start a worker in a free slot.
STARTING_S = 3.0
# Figure 7: the number of the worker that has to wait for a boot.
_FIFTH = 5


class RealSetup(msgspec.Struct, frozen=True):
    """One figure of the paper."""

    name: str
    about: str
    paper: str
    growth_per_s2: float
    slots: int
    warm: int
    # True if the load must never be above `max_load`.
    never_above: bool = False

    @property
    def slots_at_start(self) -> int:
        """The slots of the machine that is up, and of the warm machines."""
        return self.slots * (1 + self.warm)

    @property
    def policies(self) -> tuple[ScalingPolicy, ...]:
        """The paper's policy; with `never_above` also ours, since the bar applies to both."""
        if self.never_above:
            return (ScalingPolicy.LOAD, ScalingPolicy.FEED_FORWARD)
        return (ScalingPolicy.LOAD,)


SETUPS = (
    RealSetup("figure 4", "1 worker a machine, none warm", "peaks of overload", SLOW_GROWTH, 1, 0),
    RealSetup("figure 5", "2 workers a machine, none warm", "peaks halved", SLOW_GROWTH, 2, 0),
    RealSetup(
        "figure 6", "2 workers, 1 machine warm", "no impact of boots", SLOW_GROWTH, 2, 1, True
    ),
    RealSetup(
        "figure 7", "eight times the ramp, 1 warm", "late at the 5th worker", FAST_GROWTH, 2, 1
    ),
    RealSetup(
        "figure 8", "eight times the ramp, 2 warm", "works properly", FAST_GROWTH, 2, 2, True
    ),
)


class RealPlan(msgspec.Struct, frozen=True):
    """How much faster than in the paper time runs, and how far the ramp goes."""

    slow_scale: float = 10.0
    # The fast ramp is compressed less, since starting a process takes a fixed time.
    fast_scale: float = 4.0
    # The paper goes to 750. 500 needs five workers, one more than figure 6 has slots at the start.
    rate_max_per_s: float = 500.0
    # The fast ramp begins with six slots, so only the seventh worker needs a boot.
    fast_rate_max_per_s: float = RATE_MAX_PER_S
    # How long the final rate is held, as a fraction of the ramp's duration.
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
    def chosen(self) -> list[RealSetup]:
        return [setup for setup in SETUPS if setup.name in self.setups]

    def scale_of(self, setup: RealSetup) -> float:
        return self.slow_scale if setup.growth_per_s2 == SLOW_GROWTH else self.fast_scale

    def rate_max_of(self, setup: RealSetup) -> float:
        is_slow = setup.growth_per_s2 == SLOW_GROWTH
        return self.rate_max_per_s if is_slow else self.fast_rate_max_per_s

    def workers_needed(self, setup: RealSetup) -> int:
        """Return the number of workers needed at the end of the ramp."""
        return _workers_for(self.rate_max_of(setup))

    def check(self) -> None:
        """Raise `ExperimentFailed` if a figure needs no boot, because its bars could not fail."""
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


class RealSample(msgspec.Struct, frozen=True):
    """A sample; its times and loads are the paper's."""

    at_s: float
    rate_per_s: float
    average_load: float
    waiting: int
    workers: int
    machines: int
    booting: int
    ideal: int


class RealRun(msgspec.Struct, frozen=True):
    """The measurement of one figure; times and loads are the paper's, multiplied by the scale."""

    setup: RealSetup
    scale: float
    moments: list[RealSample]
    peak_load: float
    above_s: float
    # The part of `above_s` without a free slot, during which a machine must boot. The rest is
    # unavoidable: the law adds a worker when `max_load` is exceeded, and the worker takes time to
    # start.
    late_s: float
    workers_max: int
    machines_max: int
    # The number of serving workers when one was late for the first time; `None` if none was.
    workers_when_late: int | None
    confirmed: int
    boot_s_mean: float | None = None
    policy: ScalingPolicy = ScalingPolicy.LOAD

    @property
    def name(self) -> str:
        """The name of the figure, with the policy if it is not the paper's."""
        return named(self.setup, self.policy)


def named(setup: RealSetup, policy: ScalingPolicy) -> str:
    return setup.name if policy is ScalingPolicy.LOAD else f"{setup.name}, {policy.value}"


def real_section(plan: RealPlan, folder: Path, progress: Progress) -> ExperimentSection:
    """Run all figures, and return the section about them."""
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
    """Return how long a machine takes to join without an added delay."""
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


def _run(setup: RealSetup, policy: ScalingPolicy, plan: RealPlan, start_s: float) -> RealRun:
    scale, rate_max_per_s = plan.scale_of(setup), plan.rate_max_of(setup)
    settings = {
        "TIDEGATE_FLEET__PROVIDER": "process",
        # Starting and joining are part of a boot; the provider adds only the rest.
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
        # The safety interval must be at least as long as a decision takes to have an effect.
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
    """Wait until the first worker serves and the warm machines are warm."""
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
) -> tuple[list[RealSample], int]:
    module = "tidegate_lab.papers.elastic.ramp_process"
    moments: list[RealSample] = []
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


def _moment(control: BlockingClient, ramp: Ramp, elapsed_s: float, scale: float) -> RealSample:
    waiting = sum(
        queue.waiting
        for node in control.stats().nodes
        for queue in node.queues
        if logical_name(queue.name) == QUEUE
    )
    workers = _serving(control)
    machines = control.fleet().machines
    rate = ramp.rate_per_s(elapsed_s)
    return RealSample(
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
    """Wait until all confirmed messages have been consumed; raise `ExperimentFailed` after 30 s."""
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
    setup: RealSetup,
    scale: float,
    moments: list[RealSample],
    confirmed: int,
    boots: list[float],
    policy: ScalingPolicy = ScalingPolicy.LOAD,
) -> RealRun:
    """Return the measurement of a figure from its samples."""
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


def section_of(
    runs: dict[str, RealRun], plan: RealPlan, others: float, folder: Path
) -> ExperimentSection:
    """Draw the measurements, and return the section about them."""
    for run in runs.values():
        _draw(run, folder / _file(run))
    return ExperimentSection(
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
            ReportTable(
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
    """Return the bars of the requirements, and our own about waiting for machines."""
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
                # No worker was waited for: report the largest distance.
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
