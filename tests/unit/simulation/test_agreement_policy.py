"""The same load under raw thresholds and under the agreement: the same windows judge both."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from tidegate.core.topology import ScalingPolicy
from tidegate.simulation import traces
from tidegate.simulation.plant import Fault, FaultKind
from tidegate.simulation.run import SimulationResult, simulate
from tidegate.simulation.traces import load_scenario, with_policy

SLOTS = 2


@cache
def simulated(policy: ScalingPolicy, seed: int, **scaling: object) -> SimulationResult:
    scenario = with_policy(load_scenario("agreement", seed), policy)
    changed = msgspec.structs.replace(scenario.scaling, **scaling)
    return simulate(msgspec.structs.replace(scenario, scaling=changed), seed, record=False)


@pytest.mark.parametrize("seed", [1, 2])
def test_raw_thresholds_breach_what_the_agreement_policy_keeps(seed: int) -> None:
    raw = simulated(ScalingPolicy.LOAD, seed)
    # Told how long a message may wait, thresholds that look ahead do not breach, and are warned.
    told = simulated(ScalingPolicy.LOAD, seed, max_wait_s=4.8)
    kept = simulated(ScalingPolicy.AGREEMENT, seed)
    assert raw.windows_breached is not None
    assert raw.windows_breached >= 40
    assert told.windows_breached == 0
    assert told.windows_warned is not None
    assert told.windows_warned > 0
    assert (kept.windows_breached, kept.windows_warned) == (0, 0)
    assert kept.windows_met == 180


@pytest.mark.parametrize("seed", [1, 2])
def test_keeping_it_takes_less_than_a_third_more_than_knowing_the_load(seed: int) -> None:
    kept = simulated(ScalingPolicy.AGREEMENT, seed)
    # With its reserve among its replicas.
    ahead = simulated(ScalingPolicy.FEED_FORWARD, seed, warm=0)
    # Machines that are full, without a boot and without a doubt.
    assert kept.replica_s <= 1.3 * SLOTS * kept.machine_s_ideal
    assert kept.replica_s < ahead.replica_s


@pytest.mark.parametrize("kind", [FaultKind.SLOW, FaultKind.MACHINE, FaultKind.STALE])
def test_fault_under_an_agreement_causes_no_breach(kind: FaultKind) -> None:
    base = load_scenario("agreement", 1)
    fault = Fault(at_s=300.0, kind=kind, duration_s=30.0)
    steady = traces.sampled("steady", 600.0, lambda _: 70.0)
    outcome = simulate(msgspec.structs.replace(base, trace=steady, faults=[fault]), 1, record=False)
    assert outcome.windows_breached == 0
