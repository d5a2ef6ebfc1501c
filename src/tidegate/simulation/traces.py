"""Simulation scenarios: named loads, faults and settings, and traces from users' files.

A scenario is data. `load_scenario` creates one from a name or a CSV file.
`with_scaling_settings` applies a user's `key=value` settings: the keys of a queue's scaling, or
with the prefix `plant.` those of the plant. An unknown key is refused with a suggestion.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.agreement.document import text_of
from tidegate.agreement.scaling_terms import with_agreement
from tidegate.core import scaling_words
from tidegate.core.complaint import meant
from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import parse_duration_s
from tidegate.core.replication import Role
from tidegate.core.scaling import Range, Scaling, ScalingPolicy
from tidegate.simulation import generators
from tidegate.simulation.judged import agreement_in
from tidegate.simulation.settings import ClientChange, Fault, FaultKind, PlantSettings
from tidegate.simulation.trace import Trace, read_trace

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


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
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


def _paper(name: str, about: str, growth_per_s2: float, slots: int, warm: int) -> Scenario:
    scaling = Scaling(
        replicas=Range(1, 16),
        policy=ScalingPolicy.LOAD,
        min_load=50.0,
        max_load=200.0,
        slots_per_machine=slots,
        warm=warm,
        boot_s=96.9,
    )
    trace = generators.ramp(growth_per_s2, 750.0, hold_s=600.0)
    # The paper counts only the boot of a machine; a worker on a running machine starts at once.
    plant = PlantSettings(poisson=False, machines_at_start=1, start_s=0.0)
    return Scenario(
        name=name, about=about, trace=trace, scaling=scaling, plant=plant, warm_is_given=True
    )


def _clients(seed: int) -> Scenario:
    """Return the scenario of figures 10 and 11 of Replicated queues.

    5 producers and 10 consumers join, one every ten seconds.
    """
    joins = [
        ClientChange(at_s=10.0 * turn, role=Role.PRODUCER if turn % 3 == 0 else Role.CONSUMER)
        for turn in range(15)
    ]
    leaves = [
        ClientChange(at_s=400.0 + 10.0 * turn, role=one.role, count=-1)
        for turn, one in enumerate(joins[::-1])
    ]
    producers = [
        (change.at_s, change.count) for change in [*joins, *leaves] if change.role is Role.PRODUCER
    ]
    trace = generators.sampled(
        "clients",
        600.0,
        lambda time: 30.0 * sum(count for at_s, count in producers if at_s <= time),
    )
    return Scenario(
        name="clients",
        about="clients come one at a time and leave again (Replicated queues, figures 10, 11)",
        trace=trace,
        scaling=msgspec.structs.replace(
            _ELASTIC, policy=ScalingPolicy.CLIENTS, capacity_clients=6.0
        ),
        clients=[*joins, *leaves],
    )


def _random(kind: str) -> Callable[[int], Trace]:
    return lambda seed: generators.random_trace(kind, seed, _HOUR_S)


_TRACES: dict[str, tuple[str, Callable[[int], Trace], Sequence[Fault]]] = {
    "ramps": ("up, a plateau, and down again, in an hour", _random("ramps"), ()),
    "steps": ("levels that hold for some minutes each", _random("steps"), ()),
    "bursts": ("a base with bursts of 10 to 90 s on it", _random("bursts"), ()),
    "diurnal": ("one or two days pressed into an hour", _random("diurnal"), ()),
    "flash-crowd": ("many times the load within a minute", _random("flash-crowd"), ()),
    "square": (
        "100 and 600 messages a second in turn, five minutes each",
        lambda _: generators.square(100.0, 600.0, 300.0, 6),
        (),
    ),
    "saw-tooth": (
        "from 50 to 700 messages a second in ten minutes, then back at once",
        lambda _: generators.saw_tooth(50.0, 700.0, 600.0, 6),
        (),
    ),
    "machine-kills": (
        "a constant load while a machine dies every ten minutes",
        lambda _: generators.sampled("machine-kills", _HOUR_S, lambda _: 450.0),
        [Fault(at_s=600.0 * turn, kind=FaultKind.MACHINE) for turn in range(1, 6)],
    ),
    "blind": (
        "a growing load while measurements stop, and later are no numbers",
        lambda _: generators.ramp(0.2, 600.0, hold_s=600.0),
        [
            Fault(at_s=600.0, kind=FaultKind.STALE, duration_s=120.0),
            Fault(at_s=1500.0, kind=FaultKind.NAN, duration_s=120.0),
        ],
    ),
}


def _promised(seed: int) -> Scenario:
    """Return ramps and steps on machines that boot for half a minute, one of them warm."""
    return Scenario(
        name="agreement",
        about="ramps and steps under an agreement: wait_p99 below 6 s in windows of 10 s",
        trace=generators.promised_load(seed, 0.8),
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


PAPER: dict[str, Scenario] = {
    one.name: one
    for one in (
        _paper("figure-4", "Elastic queues, figure 4: 1 worker a machine, none warm", 0.5, 1, 0),
        _paper("figure-5", "Elastic queues, figure 5: 2 workers a machine, none warm", 0.5, 2, 0),
        _paper("figure-6", "Elastic queues, figure 6: 2 workers a machine, 1 warm", 0.5, 2, 1),
        _paper("figure-7", "Elastic queues, figure 7: eight times the ramp, 1 warm", 4.0, 2, 1),
        _paper("figure-8", "Elastic queues, figure 8: eight times the ramp, 2 warm", 4.0, 2, 2),
    )
}


def names() -> dict[str, str]:
    """Return the description of every scenario by name."""
    listed = {name: about for name, (about, _, _) in _TRACES.items()}
    listed["clients"] = _clients(0).about
    listed["agreement"] = _promised(0).about
    return listed | {name: scenario.about for name, scenario in PAPER.items()}


def load(name: str, seed: int) -> Scenario:
    """Return the scenario with this name, or one for the trace in this CSV file.

    Raises `InvalidValue` if there is neither.
    """
    if name in _TRACES:
        about, make, faults = _TRACES[name]
        return Scenario(name=name, about=about, trace=make(seed), faults=faults)
    if name == "clients":
        return _clients(seed)
    if name == "agreement":
        return _promised(seed)
    if name in PAPER:
        return PAPER[name]
    file = Path(name)
    if file.suffix.lower() == ".csv" or file.is_file():
        trace = read_trace(file)
        return Scenario(name=trace.name, about=f"the load of {file.name}", trace=trace)
    near = difflib.get_close_matches(name, names(), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise InvalidValue(
        f"no scenario is called {name!r}, and it is no CSV file.{hint} There are: "
        + ", ".join(names())
    )


def changed(scenario: Scenario, settings: Mapping[str, str]) -> Scenario:
    """Return the scenario with a user's settings: keys of a queue's scaling, and `plant.` keys.

    Raises `InvalidValue` for an unknown key or an invalid value.
    """
    ours = {key: value for key, value in settings.items() if not key.startswith(_PLANT)}
    plant = {
        key.removeprefix(_PLANT): value for key, value in settings.items() if key.startswith(_PLANT)
    }
    before = scenario.scaling
    if (file := ours.pop("agreement", None)) is not None:
        text = text_of(Path(file), "TOML")
        before = with_agreement(before, agreement_in(text, file), text)
    scaling = scaling_words.changed(before, ours)
    if "boot" in ours and scaling.boot_s is not None:
        # The plant boots as fast as the loop expects, unless the user sets `plant.boot`.
        plant = {"boot": f"{scaling.boot_s}s"} | plant
    return msgspec.structs.replace(
        scenario, scaling=scaling, plant=_changed_plant(scenario.plant, plant)
    )


def with_policy(scenario: Scenario, policy: ScalingPolicy) -> Scenario:
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
            raise InvalidValue(f"{_PLANT}{key}: there is no such key{meant(name, _PLANT_KEYS)}")
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
