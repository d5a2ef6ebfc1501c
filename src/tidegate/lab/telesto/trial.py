"""A trial: one configuration of the system under the mix, measured until the mean is precise.

A trial uses a fresh server with an empty store. After a warm-up it measures windows of equal
length, each of which counts as one repeat. It stops when the 95 % interval of the message
throughput is below 5 % of the mean, but not before `repeats_min` and not after `repeats_max`
windows. If the interval is still too wide, `sure` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidegate.lab.bench.processors import QUIET, Processors
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.telesto.confidence import Estimate, estimate
from tidegate.lab.telesto.crew import crew_at_work
from tidegate.lab.telesto.mix import MixOptions
from tidegate.lab.telesto.phases import PhaseTable, phase_table
from tidegate.lab.telesto.tally import TYPES, Row, Timing, Window, window_of

Progress = Callable[[str], None]


class Setup(msgspec.Struct, frozen=True):
    """The configuration to measure."""

    label: str
    mix: MixOptions = MixOptions()
    nodes: int = 1
    writers: int | None = None
    connections: int | None = None

    def settings(self) -> dict[str, str]:
        chosen = {
            "TIDEGATE_NODE__WRITERS": self.writers,
            "TIDEGATE_STORE__CONNECTIONS": self.connections,
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}


class Plan(msgspec.Struct, frozen=True):
    """The length and number of windows."""

    seconds: float = 5.0
    repeats_min: int = 3
    repeats_max: int = 8
    warm_up_s: float = 2.0


class Response(msgspec.Struct, frozen=True):
    """The response time of one type of request, in milliseconds."""

    count: int
    mean_ms: float
    deviation_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Trial(msgspec.Struct, frozen=True):
    """The measurement of one configuration."""

    label: str
    setup: Setup
    messages_per_s: Estimate
    packets_per_s: Estimate
    packets_per_message: float
    misses_per_message: float
    responses: dict[str, Response]
    phases: PhaseTable
    left_over: int
    rounds: list[float]
    # The fraction of the machine that other processes used.
    taken_by_others: float
    # Large, and needed by some figures only; the JSON of sweeps leaves them out.
    timings: dict[str, Timing] = {}
    rows: list[Row] = []

    @property
    def sure(self) -> bool:
        return self.messages_per_s.sure


def run_trial(setup: Setup, plan: Plan, progress: Progress) -> Trial:
    """Start nodes and clients, measure, and stop them."""
    with (
        tidegate_server(nodes=setup.nodes, settings=setup.settings()) as server,
        crew_at_work(server.ports, setup.mix) as crew,
    ):
        crew.work_for(plan.warm_up_s)
        windows: list[Window] = []
        first = before = crew.sample()
        numbers = crew.numbers()
        processors = Processors()
        while len(windows) < plan.repeats_max:
            crew.work_for(plan.seconds)
            after = crew.sample()
            windows.append(window_of(before, after))
            before = after
            sure = estimate([window.messages_per_s for window in windows])
            if len(windows) >= plan.repeats_min and sure.sure:
                break
        phases = phase_table(numbers, crew.numbers(), setup.mix.clients)
        taken_by_others = processors.share_of_others()
        left_over = crew.stop()
    trial = _trial(setup, windows, window_of(first, before), phases, left_over, taken_by_others)
    progress(f"{setup.label}: {said(trial.messages_per_s)}{_disturbance(taken_by_others)}")
    return trial


def disturbances(trials: Sequence[Trial]) -> list[str]:
    """Return a note if other processes used the machine during these trials."""
    most = max(trial.taken_by_others for trial in trials)
    if most <= QUIET:
        return []
    return [
        f"Other processes took up to {100 * most:.0f} % of the machine meanwhile: differences "
        "between settings may be theirs."
    ]


def _disturbance(taken_by_others: float) -> str:
    if taken_by_others <= QUIET:
        return ""
    return f" (others took {100 * taken_by_others:.0f} % of the machine)"


def said(figure: Estimate) -> str:
    """Format a throughput with its interval."""
    if figure.half_width is None:
        return f"{figure.mean:,.0f} messages/s"
    doubt = "" if figure.sure else f" (not below 5 % after {figure.repeats} repeats)"
    return f"{figure.mean:,.0f} ± {figure.half_width:,.0f} messages/s{doubt}"


def _trial(
    setup: Setup,
    windows: list[Window],
    whole: Window,
    phases: PhaseTable,
    left_over: int,
    taken_by_others: float,
) -> Trial:
    return Trial(
        label=setup.label,
        setup=setup,
        messages_per_s=estimate([window.messages_per_s for window in windows]),
        packets_per_s=estimate([window.packets_per_s for window in windows]),
        packets_per_message=whole.packets_per_message,
        misses_per_message=whole.misses / max(whole.messages, 1),
        responses={
            kind: _response(whole.timings[kind])
            for kind in TYPES
            if kind in whole.timings and whole.timings[kind].count
        },
        phases=phases,
        left_over=left_over,
        rounds=[window.messages_per_s for window in windows],
        taken_by_others=taken_by_others,
        timings=whole.timings,
        rows=[row for window in windows for row in window.rows],
    )


def _response(timing: Timing) -> Response:
    return Response(
        count=timing.count,
        mean_ms=1e3 * timing.mean_s,
        deviation_ms=1e3 * timing.deviation_s,
        p50_ms=1e3 * timing.percentile_s(0.50),
        p99_ms=1e3 * timing.percentile_s(0.99),
        max_ms=1e3 * timing.max_s,
    )
