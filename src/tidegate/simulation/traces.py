"""A trace: arrival rates over time, read from a CSV file.

    t_s,rate,service_ms
    0,120,10
    60,180,10

A row gives the rate from its time until the next row. The last row lasts as long as the row before
it. Buckets of a measurement can thus be replayed unchanged, and the number of arrivals is exactly
the sum of rate × length. A file with any other row is refused with the number of the line.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.agreements.document import (
    Agreement,
    parse_agreement,
    read_text,
    with_agreed_scaling,
    with_agreement,
)
from tidegate.agreements.evaluation import AgreementSample, VerdictCounts
from tidegate.control.queues.agreement import QueueAgreement
from tidegate.core import topology
from tidegate.core.errors import InvalidValue
from tidegate.core.text import parse_duration_s, suggestion_for
from tidegate.core.topology import MemberRole, Range, Scaling, ScalingPolicy
from tidegate.laws.scaling.wait import WaitTarget
from tidegate.simulation.plant import ClientChange, Fault, FaultKind, PlantSettings, SimulatedPlant

ROWS_MAX = 1_000_000
FILE_BYTES_MAX = 64 * 1024 * 1024
RATE_MAX_PER_S = 1e7
SERVICE_MS_MAX = 3_600_000.0
# 31 days; a longer trace has a mistake in the unit.
DURATION_S_MAX = 31 * 86_400.0
_HEADERS = (["t_s", "rate"], ["t_s", "rate", "service_ms"])


class Trace(msgspec.Struct, frozen=True):
    """Rates over time. The sequences have the same length, and times increase from 0."""

    name: str
    times_s: Sequence[float]
    rates_per_s: Sequence[float]
    # Time in milliseconds for one message. `None` uses the plant's capacity.
    service_ms: Sequence[float] | None = None

    @property
    def duration_s(self) -> float:
        return self.times_s[-1] + (self.times_s[-1] - self.times_s[-2])

    @property
    def peak_per_s(self) -> float:
        return max(self.rates_per_s)

    @property
    def messages(self) -> float:
        """The number of messages of the whole trace."""
        ends = [*self.times_s[1:], self.duration_s]
        return sum(
            rate * (end - start)
            for start, end, rate in zip(self.times_s, ends, self.rates_per_s, strict=True)
        )


class TraceReader:
    """Reads a trace from start to end; intervals must be requested in temporal order."""

    def __init__(self, trace: Trace) -> None:
        self._times = [*trace.times_s, trace.duration_s]
        self._rates = trace.rates_per_s
        self._services = trace.service_ms
        self._row = 0
        self._rows = len(trace.rates_per_s)

    def messages(self, start_s: float, end_s: float) -> float:
        """Return the number of messages between two times, as an exact sum over the rows."""
        times, rates = self._times, self._rates
        row, came = self._row, 0.0
        while row < self._rows and start_s < end_s:
            until = min(times[row + 1], end_s)
            if until > start_s:
                came += rates[row] * (until - start_s)
                start_s = until
            if times[row + 1] <= end_s:
                row += 1
            else:
                break
        self._row = min(row, self._rows - 1)
        return came

    @property
    def service_ms(self) -> float | None:
        """The service time of the current row, or `None`."""
        return None if self._services is None else self._services[self._row]


def read_trace(file: Path) -> Trace:
    """Read a trace from a CSV file.

    Raises `InvalidValue` with the first invalid line.
    """
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise InvalidValue(
                f"{file}: larger than {FILE_BYTES_MAX >> 20} MiB; give coarser rows, one a second "
                "or one a minute"
            )
        written = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidValue(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidValue(f"{file}: is no text in UTF-8; a trace is a CSV file") from None
    return parse_trace(written, file.stem, str(file))


def parse_trace(written: str, name: str, where: str = "trace") -> Trace:
    """Parse a trace from the text of a CSV file; `where` names it in errors."""
    lines = written.splitlines()
    if not any(line.strip() for line in lines):
        raise InvalidValue(f"{where}: is empty; a trace begins with the line t_s,rate")
    header = [cell.strip() for cell in lines[0].split(",")]
    if header not in _HEADERS:
        raise InvalidValue(
            f"{where}, line 1: the header is {lines[0].strip()[:80]!r}; it has to be t_s,rate or "
            "t_s,rate,service_ms"
        )
    times: list[float] = []
    rates: list[float] = []
    services: list[float] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        if len(times) >= ROWS_MAX:
            raise InvalidValue(f"{where}, line {number}: more than {ROWS_MAX:,} rows")
        cells = _numbers(line, header, f"{where}, line {number}")
        _check_time(cells[0], times, f"{where}, line {number}")
        _check_between(cells[1], 0.0, RATE_MAX_PER_S, "rate", f"{where}, line {number}")
        times.append(cells[0])
        rates.append(cells[1])
        if len(cells) == 3:
            _check_between(cells[2], 1e-3, SERVICE_MS_MAX, "service_ms", f"{where}, line {number}")
            services.append(cells[2])
    if len(times) < 2:
        raise InvalidValue(f"{where}: has {len(times)} rows; a trace needs two or more")
    return Trace(name, times, rates, services or None)


def _numbers(line: str, header: Sequence[str], where: str) -> list[float]:
    cells = line.split(",")
    if len(cells) != len(header):
        raise InvalidValue(
            f"{where}: {len(cells)} values, but the header has {len(header)} ({','.join(header)})"
        )
    numbers: list[float] = []
    for name, cell in zip(header, cells, strict=True):
        try:
            number = float(cell)
        except ValueError:
            raise InvalidValue(f"{where}: {name} is {cell.strip()[:40]!r}, not a number") from None
        if not math.isfinite(number):
            raise InvalidValue(f"{where}: {name} is {cell.strip()}; it has to be finite")
        numbers.append(number)
    return numbers


def _check_time(time_s: float, before: Sequence[float], where: str) -> None:
    if not before and time_s != 0:
        raise InvalidValue(f"{where}: t_s is {time_s:g}; a trace begins at 0")
    if before and time_s <= before[-1]:
        raise InvalidValue(
            f"{where}: t_s is {time_s:g} after {before[-1]:g}; times have to increase"
        )
    if time_s > DURATION_S_MAX:
        raise InvalidValue(
            f"{where}: t_s is {time_s:g}; more than 31 days. Is it in milliseconds, or since 1970?"
        )


def _check_between(value: float, low: float, high: float, name: str, where: str) -> None:
    if value < low:
        problem = "negative" if value < 0 else "too small"
        raise InvalidValue(f"{where}: {name} is {value:g}: {problem}; at least {low:g}")
    if value > high:
        raise InvalidValue(f"{where}: {name} is {value:g}: too large; at most {high:g}")


# Generated traces: typical shapes of load, each from a few parameters and a seed.
#
# Each shape is a function of time, sampled once per second. Random numbers come from one generator
# created from the seed, so the same seed gives the same trace on every machine.


def sampled(name: str, duration_s: float, rate_at: Callable[[float], float]) -> Trace:
    """Return a function of time as a trace with one row per second, sampled in its middle."""
    seconds = max(2, math.ceil(duration_s))
    times = [float(second) for second in range(seconds)]
    return Trace(name, times, [max(0.0, round(rate_at(time + 0.5), 6)) for time in times])


def ramp(
    growth_per_s2: float, top_per_s: float, hold_s: float = 0.0, *, start_per_s: float = 0.0
) -> Trace:
    """Return a trace that grows at a constant rate and then stays constant."""
    rise_s = (top_per_s - start_per_s) / growth_per_s2
    return sampled(
        "ramp",
        rise_s + hold_s,
        lambda time: min(top_per_s, start_per_s + growth_per_s2 * time),
    )


def square(low_per_s: float, high_per_s: float, half_s: float, periods: int) -> Trace:
    """Return a trace that alternates between a low and a high rate."""
    return sampled(
        "square",
        2 * half_s * periods,
        lambda time: low_per_s if (time // half_s) % 2 == 0 else high_per_s,
    )


def saw_tooth(low_per_s: float, high_per_s: float, period_s: float, periods: int) -> Trace:
    """Return a trace that repeatedly rises slowly and falls at once."""
    return sampled(
        "saw-tooth",
        period_s * periods,
        lambda time: low_per_s + (high_per_s - low_per_s) * (time % period_s) / period_s,
    )


# Random shapes


def promised_load(seed: int, growth_per_s2: float, duration_s: float = 1800.0) -> Trace:
    """Return levels held for some minutes, rising at most as fast as agreed and falling at once."""
    chance = random.Random(f"promised {seed}")
    rates: list[float] = []
    rate = chance.uniform(8.0, 18.0)
    while len(rates) < duration_s:
        target = chance.uniform(8.0, 150.0)
        growth = chance.uniform(0.5, 1.0) * growth_per_s2
        while rate < target:
            rate = min(rate + growth, target)
            rates.append(rate)
        rate = target
        rates += [rate] * round(chance.uniform(60.0, 240.0))
    return sampled("agreement", duration_s, lambda time: rates[int(time)])


def random_ramps(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace that rises, stays on a plateau, and falls again."""
    low = chance.uniform(20.0, 200.0)
    high = low + chance.uniform(200.0, 900.0)
    rise_s = chance.uniform(0.15, 0.4) * duration_s
    plateau_s = chance.uniform(0.1, 0.3) * duration_s
    fall_s = chance.uniform(0.1, 0.3) * duration_s

    def rate_at(time: float) -> float:
        if time < rise_s:
            return low + (high - low) * time / rise_s
        if time < rise_s + plateau_s:
            return high
        return max(low, high - (high - low) * (time - rise_s - plateau_s) / fall_s)

    return sampled("ramps", duration_s, rate_at)


def random_steps(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace of levels that last some minutes each."""
    levels: list[tuple[float, float]] = []
    until = 0.0
    while until < duration_s:
        until += chance.uniform(120.0, 600.0)
        levels.append((until, chance.uniform(20.0, 800.0)))
    return sampled(
        "steps", duration_s, lambda time: next(rate for end, rate in levels if time < end)
    )


def random_bursts(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace of a constant base with short bursts."""
    base = chance.uniform(50.0, 300.0)
    bursts: list[tuple[float, float, float]] = []
    time_s = chance.expovariate(1 / 240.0)
    while time_s < duration_s:
        bursts.append((time_s, time_s + chance.uniform(10.0, 90.0), chance.uniform(100.0, 600.0)))
        time_s = bursts[-1][1] + chance.expovariate(1 / 240.0)
    return sampled(
        "bursts",
        duration_s,
        lambda time: base + sum(height for start, end, height in bursts if start <= time < end),
    )


def random_diurnal(chance: random.Random, duration_s: float) -> Trace:
    """Return one or more days compressed into the duration, with a second harmonic and noise."""
    days = chance.uniform(1.0, 2.5)
    mean = chance.uniform(150.0, 500.0)
    swing, second = chance.uniform(0.4, 0.9) * mean, chance.uniform(0.0, 0.25) * mean
    phase = chance.uniform(0.0, 2 * math.pi)
    noise, level = chance.uniform(0.0, 0.03) * mean, 0.0
    wander: list[float] = []
    for _ in range(math.ceil(duration_s) + 1):
        level = 0.98 * level + chance.gauss(0.0, noise)
        wander.append(level)

    def rate_at(time: float) -> float:
        angle = 2 * math.pi * days * time / duration_s + phase
        return mean + swing * math.sin(angle) + second * math.sin(2 * angle) + wander[int(time)]

    return sampled("diurnal", duration_s, rate_at)


def random_flash_crowd(chance: random.Random, duration_s: float) -> Trace:
    """Return a low base with a rise to many times that within about a minute, and a slow decay."""
    base = chance.uniform(30.0, 200.0)
    peak = base * chance.uniform(3.0, 8.0)
    start_s = chance.uniform(0.1, 0.5) * duration_s
    rise_s = chance.uniform(20.0, 120.0)
    decay_s = chance.uniform(0.1, 0.3) * duration_s

    def rate_at(time: float) -> float:
        if time < start_s:
            return base
        if time < start_s + rise_s:
            return base + (peak - base) * (time - start_s) / rise_s
        return base + (peak - base) * math.exp(-(time - start_s - rise_s) / decay_s)

    return sampled("flash-crowd", duration_s, rate_at)


KINDS: dict[str, Callable[[random.Random, float], Trace]] = {
    "ramps": random_ramps,
    "steps": random_steps,
    "bursts": random_bursts,
    "diurnal": random_diurnal,
    "flash-crowd": random_flash_crowd,
}


def random_trace(kind: str, seed: int, duration_s: float) -> Trace:
    """Return a trace of a kind from `KINDS`; the same seed gives the same trace."""
    return KINDS[kind](random.Random(f"{kind} {seed}"), duration_s)


# Simulation scenarios: named loads, faults and settings, and traces from users' files.
#
# A scenario is data. `load_scenario` creates one from a name or a CSV file.
# `with_scaling_settings` applies a user's `key=value` settings: the keys of a queue's scaling, or
# with the prefix `plant.` those of the plant. An unknown key is refused with a suggestion.


# KEDA's defaults.
KEDA_POLLING_S = 30.0
KEDA_COOLDOWN_S = 300.0
# An hour: long enough for machines to come and go several times.
_HOUR_S = 3600.0
_ELASTIC = Scaling(
    replicas=Range(1, 16),
    policy=ScalingPolicy.FEED_FORWARD,
    slots_per_machine=2,
    boot_s=96.9,
    warm=0,
    step_max=4,
)
# The best settings of each policy, from the policy contest of the lab.
_AT_ITS_BEST: dict[ScalingPolicy, dict[str, int]] = {
    ScalingPolicy.FEED_FORWARD: {"warm": 1, "step_max": 4},
    ScalingPolicy.LOAD: {"warm": 1, "step_max": 1},
    ScalingPolicy.LENGTH: {"warm": 1, "step_max": 16},
    ScalingPolicy.CLIENTS: {"warm": 1, "step_max": 1},
    ScalingPolicy.AGREEMENT: {"warm": 1, "step_max": 4},
}
# The promise of TAPAS: a breach at 6 s, with a warning at 4.8 s.
_PROMISED = """\
name = "orders"
queue = "orders"
window = "10s"
replicas = { min = 1, max = 12 }
sla_delta = 0.8

[metrics.wait_p99]
breach = "6s"
"""


class SimulationScenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run needs, besides its seed."""

    name: str
    about: str
    trace: Trace
    scaling: Scaling = _ELASTIC
    plant: PlantSettings = PlantSettings()
    faults: Sequence[Fault] = ()
    clients: Sequence[ClientChange] = ()
    # Whether the number of warm machines belongs to the scenario, so that a policy must not change
    # it.
    warm_is_given: bool = False


def _paper(
    name: str, about: str, growth_per_s2: float, slots: int, warm: int
) -> SimulationScenario:
    scaling = Scaling(
        replicas=Range(1, 16),
        policy=ScalingPolicy.LOAD,
        min_load=50.0,
        max_load=200.0,
        slots_per_machine=slots,
        warm=warm,
        boot_s=96.9,
    )
    trace = ramp(growth_per_s2, 750.0, hold_s=600.0)
    # The paper counts only the boot of a machine; a worker on a running machine starts at once.
    plant = PlantSettings(poisson=False, machines_at_start=1, start_s=0.0)
    return SimulationScenario(
        name=name, about=about, trace=trace, scaling=scaling, plant=plant, warm_is_given=True
    )


def _clients(seed: int) -> SimulationScenario:
    """Return the scenario of figures 10 and 11 of Replicated queues.

    5 producers and 10 consumers join, one every ten seconds.
    """
    joins = [
        ClientChange(
            at_s=10.0 * turn, role=MemberRole.PRODUCER if turn % 3 == 0 else MemberRole.CONSUMER
        )
        for turn in range(15)
    ]
    leaves = [
        ClientChange(at_s=400.0 + 10.0 * turn, role=one.role, count=-1)
        for turn, one in enumerate(joins[::-1])
    ]
    producers = [
        (change.at_s, change.count)
        for change in [*joins, *leaves]
        if change.role is MemberRole.PRODUCER
    ]
    trace = sampled(
        "clients",
        600.0,
        lambda time: 30.0 * sum(count for at_s, count in producers if at_s <= time),
    )
    return SimulationScenario(
        name="clients",
        about="clients come one at a time and leave again (Replicated queues, figures 10, 11)",
        trace=trace,
        scaling=msgspec.structs.replace(
            _ELASTIC, policy=ScalingPolicy.CLIENTS, capacity_clients=6.0
        ),
        clients=[*joins, *leaves],
    )


def _random(kind: str) -> Callable[[int], Trace]:
    return lambda seed: random_trace(kind, seed, _HOUR_S)


_TRACES: dict[str, tuple[str, Callable[[int], Trace], Sequence[Fault]]] = {
    "ramps": ("up, a plateau, and down again, in an hour", _random("ramps"), ()),
    "steps": ("levels that hold for some minutes each", _random("steps"), ()),
    "bursts": ("a base with bursts of 10 to 90 s on it", _random("bursts"), ()),
    "diurnal": ("one or two days pressed into an hour", _random("diurnal"), ()),
    "flash-crowd": ("many times the load within a minute", _random("flash-crowd"), ()),
    "square": (
        "100 and 600 messages a second in turn, five minutes each",
        lambda _: square(100.0, 600.0, 300.0, 6),
        (),
    ),
    "saw-tooth": (
        "from 50 to 700 messages a second in ten minutes, then back at once",
        lambda _: saw_tooth(50.0, 700.0, 600.0, 6),
        (),
    ),
    "machine-kills": (
        "a constant load while a machine dies every ten minutes",
        lambda _: sampled("machine-kills", _HOUR_S, lambda _: 450.0),
        [Fault(at_s=600.0 * turn, kind=FaultKind.MACHINE) for turn in range(1, 6)],
    ),
    "blind": (
        "a growing load while measurements stop, and later are no numbers",
        lambda _: ramp(0.2, 600.0, hold_s=600.0),
        [
            Fault(at_s=600.0, kind=FaultKind.STALE, duration_s=120.0),
            Fault(at_s=1500.0, kind=FaultKind.NAN, duration_s=120.0),
        ],
    ),
}


def _promised(seed: int) -> SimulationScenario:
    """Return ramps and steps on machines that boot for half a minute, one of them warm."""
    return SimulationScenario(
        name="agreement",
        about="ramps and steps under an agreement: wait_p99 below 6 s in windows of 10 s",
        trace=promised_load(seed, 0.8),
        scaling=Scaling(
            replicas=Range(1, 12),
            policy=ScalingPolicy.AGREEMENT,
            slots_per_machine=2,
            boot_s=30.0,
            # The papers' thresholds, for policies that use them.
            min_load=50.0,
            max_load=200.0,
            warm=1,
            agreement=_PROMISED,
        ),
        # 50 ms of work for each message.
        plant=PlantSettings(capacity_per_s=20.0, boot_s=30.0),
        warm_is_given=True,
    )


PAPER: dict[str, SimulationScenario] = {
    one.name: one
    for one in (
        _paper("figure-4", "Elastic queues, figure 4: 1 worker a machine, none warm", 0.5, 1, 0),
        _paper("figure-5", "Elastic queues, figure 5: 2 workers a machine, none warm", 0.5, 2, 0),
        _paper("figure-6", "Elastic queues, figure 6: 2 workers a machine, 1 warm", 0.5, 2, 1),
        _paper("figure-7", "Elastic queues, figure 7: eight times the ramp, 1 warm", 4.0, 2, 1),
        _paper("figure-8", "Elastic queues, figure 8: eight times the ramp, 2 warm", 4.0, 2, 2),
    )
}


def scenario_names() -> dict[str, str]:
    """Return the description of every scenario by name."""
    listed = {name: about for name, (about, _, _) in _TRACES.items()}
    listed["clients"] = _clients(0).about
    listed["agreement"] = _promised(0).about
    return listed | {name: scenario.about for name, scenario in PAPER.items()}


def load_scenario(name: str, seed: int) -> SimulationScenario:
    """Return the scenario with this name, or one for the trace in this CSV file.

    Raises `InvalidValue` if there is neither.
    """
    if name in _TRACES:
        about, make, faults = _TRACES[name]
        return SimulationScenario(name=name, about=about, trace=make(seed), faults=faults)
    if name == "clients":
        return _clients(seed)
    if name == "agreement":
        return _promised(seed)
    if name in PAPER:
        return PAPER[name]
    file = Path(name)
    if file.suffix.lower() == ".csv" or file.is_file():
        trace = read_trace(file)
        return SimulationScenario(name=trace.name, about=f"the load of {file.name}", trace=trace)
    near = difflib.get_close_matches(name, scenario_names(), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise InvalidValue(
        f"no scenario is called {name!r}, and it is no CSV file.{hint} There are: "
        + ", ".join(scenario_names())
    )


def with_scaling_settings(
    scenario: SimulationScenario, settings: Mapping[str, str]
) -> SimulationScenario:
    """Return the scenario with a user's settings: keys of a queue's scaling, and `plant.` keys.

    Raises `InvalidValue` for an unknown key or an invalid value.
    """
    ours = {key: value for key, value in settings.items() if not key.startswith(_PLANT)}
    plant = {
        key.removeprefix(_PLANT): value for key, value in settings.items() if key.startswith(_PLANT)
    }
    before = scenario.scaling
    if (file := ours.pop("agreement", None)) is not None:
        text = read_text(Path(file), "TOML")
        before = with_agreement(before, agreement_in(text, file), text)
    scaling = topology.with_scaling_keys(before, ours)
    if "boot" in ours and scaling.boot_s is not None:
        # The plant boots as fast as the loop expects, unless the user sets `plant.boot`.
        plant = {"boot": f"{scaling.boot_s}s"} | plant
    return msgspec.structs.replace(
        scenario, scaling=scaling, plant=_changed_plant(scenario.plant, plant)
    )


def with_policy(scenario: SimulationScenario, policy: ScalingPolicy) -> SimulationScenario:
    """Return the scenario under another policy with its best settings.

    Policy "length" gets KEDA's polling interval and cool-down, and competing replicas.
    """
    best = dict(_AT_ITS_BEST.get(policy, {}))
    if scenario.warm_is_given:
        best.pop("warm", None)
    scaling = msgspec.structs.replace(scenario.scaling, policy=policy, **best)
    if policy is ScalingPolicy.AGREEMENT and scaling.agreement is None:
        # The tolerated load as a promise: max_load messages at the rate of one replica.
        breach_s = scaling.max_load / scenario.plant.capacity_per_s
        scaling = msgspec.structs.replace(scaling, agreement=_promise(breach_s))
    plant = scenario.plant
    if policy is ScalingPolicy.LENGTH:
        scaling = msgspec.structs.replace(
            scaling,
            polling_interval_s=KEDA_POLLING_S,
            cooldown_period_s=KEDA_COOLDOWN_S,
            stale_s=2 * KEDA_POLLING_S,
        )
        plant = msgspec.structs.replace(plant, competing=True)
    return msgspec.structs.replace(scenario, scaling=scaling, plant=plant)


def _promise(breach_s: float) -> str:
    return f'name = "orders"\nqueue = "orders"\n[metrics.wait_p99]\nbreach = "{breach_s:g}s"\n'


def _changed_plant(before: PlantSettings, given: Mapping[str, str]) -> PlantSettings:
    whole: dict[str, Any] = msgspec.to_builtins(before)
    for key, written in given.items():
        name = key.replace("-", "_")
        field = _PLANT_KEYS.get(name, name)
        if field not in before.__struct_fields__:
            raise InvalidValue(
                f"{_PLANT}{key}: there is no such key{suggestion_for(name, _PLANT_KEYS)}"
            )
        whole[field] = parse_duration_s(written) if _is_duration(field) else written
    try:
        return msgspec.convert(whole, PlantSettings, strict=False)
    except msgspec.ValidationError as failure:
        raise InvalidValue(f"--set: {failure}".replace("$.", _PLANT)) from None


def _is_duration(field: str) -> bool:
    return field.endswith("_s") and not field.endswith("_per_s")


_PLANT = "plant."
# Key that users write → field, as in a queue's scaling.
_PLANT_KEYS = {
    name.removesuffix("_s") if _is_duration(name) else name: name
    for name in PlantSettings.__struct_fields__
}


# The agreement of a simulated queue: judges every tick as the real loop does, under any policy.
#
# Policies that ignore the agreement and policies that follow it can thus be compared by the same
# windows.


QUEUE = "orders"


def agreement_in(text: str, source: str = "agreement") -> Agreement:
    """Parse an agreement about any queue; the simulation has only one.

    Raises `InvalidValue` if the agreement is about HTTP.
    """
    agreement = parse_agreement(text, source)
    if agreement.queue is None:
        raise InvalidValue(f"{source} is about http: what is simulated is a queue")
    return agreement


def with_agreement_terms(scaling: Scaling) -> Scaling:
    """Return the scaling settings with the terms of their agreement, or unchanged without one."""
    if scaling.agreement is None:
        return scaling
    return with_agreed_scaling(scaling, agreement_in(scaling.agreement))


class SimulatedAgreement:
    """The agreement of a simulated queue, and its evaluation so far."""

    def __init__(self, scaling: Scaling, plant: SimulatedPlant) -> None:
        assert scaling.agreement is not None
        self._agreement = QueueAgreement(agreement_in(scaling.agreement), QUEUE)
        self._scaling = scaling
        self._plant = plant
        plant.waits = []
        self._arrived = self._consumed = 0
        self.counts = VerdictCounts()

    @property
    def capacity_per_s(self) -> float | None:
        """The capacity of a replica that the agreement states, or `None`."""
        return self._agreement.said.resources.capacity_per_s

    def tick(self, tick_s: float) -> None:
        """Evaluate the tick that has just ended."""
        plant = self._plant
        waits = plant.waits or []
        sample = AgreementSample(
            at_s=plant.now,
            interval_s=tick_s,
            accepted=float(plant.arrived - self._arrived),
            served=float(plant.consumed - self._consumed),
            waiting=float(plant.waiting),
            oldest_age_s=plant.oldest_age_s,
            times={"wait": tuple(waits)},
        )
        waits.clear()
        self._arrived, self._consumed = plant.arrived, plant.consumed
        for entry in self._agreement.add_sample(sample):
            self.counts += VerdictCounts.of([entry.window.verdict])

    def wait_target(self, lead_s: float | None) -> WaitTarget:
        """Return the wait target for the next decision of the loop."""
        self._agreement.reconfigured(lead_s)
        self._agreement.learn_warnings(self._scaling.boot_s)
        return self._agreement.wait_target(self._scaling.sla_delta)
