"""What the control loops decide in virtual time: when, by which rule, with which numbers, and what.

A decision is frozen as it is stored, without the sentences for people. Those that do something
stand in full. The others are told together, for each stretch of time: how many there were by each
rule, and a hash of all their numbers.

Numbers have six digits: another version of Python or of libm may differ in the last of seventeen.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from golden_files import Golden
from hosted_plant import EPOCH_S, Plant, agreed
from simulated_consumer import SimulatedConsumer

from tidegate.control.provisioning import Provisioner
from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.control.services.sizing import ServiceAutoscaler
from tidegate.core.prefetch import ControllerKind, PrefetchGoal
from tidegate.core.topology import ScalingPolicy
from tidegate.laws.prefetch.loop import PrefetchRegulator
from tidegate.simulation.run import simulate
from tidegate.simulation.traces import (
    SimulationScenario,
    load_scenario,
    scenario_names,
    with_policy,
)

_SENTENCES = ("reason", "otherwise", "outcome")
# What loops do all the time.
_USUAL = ("SetShares", "Weigh", "KeepUp")
_STRETCH_S = 100.0
# Of each scenario; of these two as long as it takes until their last fault.
_SECONDS = 500.0
_LONGER = {"machine-kills": 650.0, "blind": 1650.0}
_SCENARIOS = [(name, 1) for name in scenario_names()] + [("bursts", 2)]


@pytest.mark.parametrize(("name", "seed"), _SCENARIOS)
def test_decisions_about_queues_are_as_they_were(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    decisions = _recorded(monkeypatch)
    lines = []
    for policy in ScalingPolicy:
        decisions.clear()
        simulated = simulate(
            _cut(with_policy(load_scenario(name, seed), policy)), seed, record=False
        )
        lines += [f"== {policy.value}", *_told(decisions), _numbers(simulated.summary()), ""]

    golden(f"decisions/queues/{name}-{seed}.txt", lines)


def test_the_list_of_scenarios_is_as_it_was(golden: Golden) -> None:
    golden(
        "decisions/scenarios.txt", [*scenario_names(), "", *(one.value for one in ScalingPolicy)]
    )


async def _crowd(plant: Plant) -> None:
    plant.clients = lambda now: 30 if now < 60.0 else 4
    await plant.run(110.0)


async def _killed(plant: Plant) -> None:
    plant.rate = lambda now: 12.0
    await plant.run(15.0)
    plant.kill(1)
    await plant.run(30.0)


async def _slower(plant: Plant) -> None:
    plant.clients = lambda now: 8
    await plant.run(20.0)
    plant.service_s *= 3.0
    await plant.run(40.0)


async def _another_leader(plant: Plant) -> None:
    plant.rate = lambda now: 6.0 + now / 4.0
    await plant.run(30.0)
    await plant.change_leader()
    await plant.run(30.0)


async def _new_version(plant: Plant) -> None:
    plant.rate = lambda now: 8.0
    await plant.run(20.0)
    await plant.deploy(target="shop:next")
    await plant.run(30.0)


@pytest.mark.parametrize(
    ("name", "lives", "settings"),
    [
        ("crowd", _crowd, {}),
        ("crowd-with-spares", _crowd, {"spares": 2}),
        ("more-than-there-is", _crowd, {"agreement": agreed(2), "slots": 2}),
        ("killed", _killed, {"agreement": agreed(least=3)}),
        ("slower", _slower, {"concurrency": 8, "parallel": 4}),
        ("another-leader", _another_leader, {}),
        ("new-version", _new_version, {"agreement": agreed(least=2)}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_decisions_about_services_are_as_they_were(
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    lives: Callable[[Plant], Any],
    settings: dict[str, Any],
) -> None:
    decisions = _recorded(monkeypatch)
    plant = Plant(**settings)
    await plant.begin()
    await plant.run(5.0)
    await lives(plant)
    stored = [_line(_plain(one), EPOCH_S) for one in await plant.decisions()]

    golden(
        f"decisions/services/{name}.txt",
        ["== decided", *_told(decisions), "", "== stored", *stored],
    )


@pytest.mark.parametrize("kind", [one.value for one in ControllerKind])
async def test_steps_of_prefetch_are_as_they_were(golden: Golden, kind: str) -> None:
    goals = {
        "rate": PrefetchGoal(rate_per_s=2000.0, controller=ControllerKind(kind), high=100),
        "too much": PrefetchGoal(rate_per_s=9000.0, controller=ControllerKind(kind), high=100),
        "keep up": PrefetchGoal(controller=ControllerKind(kind), high=100),
        "manual": PrefetchGoal(controller=ControllerKind(kind), manual=7),
    }
    lines = []
    for name, goal in goals.items():
        lines += [f"== {name}", *[line async for line in _steered(goal)], ""]

    golden(f"decisions/prefetch/{kind}.txt", lines)


async def _steered(goal: PrefetchGoal) -> Any:
    """A consumer that saturates, is starved for a while, and is not measured for a while."""
    consumer = SimulatedConsumer(ceiling_per_s=5000.0, is_starved=lambda k: 80 <= k < 90)
    steering = PrefetchRegulator(goal, None, consumer.prefetch)
    for k in range(140):
        sample = await consumer.measure(goal.sample_s)
        step = steering.step(None if 100 <= k < 115 or k == 60 else sample)
        prefetch = steering.tick()
        await consumer.set_prefetch(max(prefetch, 1))
        numbers = " ".join(
            map(_number, (sample.arrived_per_s, step.target_per_s, step.wanted, step.level))
        )
        yield f"{k} {step.mode.value} {step.saturated.value or '-'} {numbers} {prefetch}"


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that loops of queues, machines and services decide from now on."""
    decisions: list[Any] = []

    def recording(decide: Callable[..., Any]) -> Callable[..., Any]:
        def decided(*arguments: Any, **more: Any) -> Any:
            decision = decide(*arguments, **more)
            decisions.append(decision)
            return decision

        return decided

    for kind in (Autoscaler, Provisioner, ServiceAutoscaler):
        monkeypatch.setattr(kind, "decide", recording(kind.decide))
    return decisions


def _cut(scenario: SimulationScenario) -> SimulationScenario:
    """The beginning of a scenario."""
    trace, seconds = scenario.trace, _LONGER.get(scenario.name, _SECONDS)
    count = sum(at < seconds for at in trace.times_s)
    services = None if trace.service_ms is None else trace.service_ms[:count]
    cut = msgspec.structs.replace(
        trace,
        times_s=trace.times_s[:count],
        rates_per_s=trace.rates_per_s[:count],
        service_ms=services,
    )
    return msgspec.structs.replace(scenario, trace=cut)


def _told(decisions: Sequence[Any]) -> Iterator[str]:
    quiet: list[str] = []
    rules: Counter[str] = Counter()
    until = _STRETCH_S
    for plain in map(_plain, decisions):
        while plain["at"] > until:
            yield from _together(until, rules, quiet)
            until += _STRETCH_S
        line = _line(plain)
        if any(action["type"] not in _USUAL for action in plain["actions"]):
            yield line
        else:
            rules[f"{plain['loop']} {plain['rule']}"] += 1
            quiet.append(line)
    yield from _together(until, rules, quiet)


def _together(until: float, rules: Counter[str], quiet: list[str]) -> Iterator[str]:
    if quiet:
        found = "; ".join(f"{count} {rule}" for rule, count in sorted(rules.items()))
        digest = hashlib.sha256("\n".join(quiet).encode()).hexdigest()[:12]
        yield f"  before {until:.0f}: {found}; {digest}"
    quiet.clear()
    rules.clear()


def _plain(decision: Any) -> dict[str, Any]:
    """As it is stored, without sentences."""
    plain: dict[str, Any] = msgspec.to_builtins(decision, str_keys=True)
    for name in _SENTENCES:
        del plain[name]
    return plain


def _line(plain: Mapping[str, Any], epoch_s: float = 0.0) -> str:
    rest = {key: plain[key] for key in ("service", "carried_out", "by")}
    return (
        f"{plain['at'] - epoch_s:.3f} {plain['loop']} {plain['law']} [{plain['rule']}]"
        f" {_numbers(plain['inputs'])} -> {_numbers(plain['outputs'])}"
        f" {'; '.join(_action(one) for one in plain['actions']) or 'nothing'}"
        f" {_numbers(rest)}"
    )


def _action(plain: Mapping[str, Any]) -> str:
    fields = {key: value for key, value in plain.items() if key != "type"}
    return f"{plain['type']} {_numbers(fields)}"


def _numbers(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}={_number(value)}" for key, value in values.items()) + "}"


def _number(value: Any) -> str:
    if isinstance(value, Mapping):
        return _numbers(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
