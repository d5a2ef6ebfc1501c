"""Whole runs: the loops unchanged, the same seed the same bytes, the papers' effects, bad input."""

import msgspec
import pytest

from tidegate.core.topology import ControlMode, MemberRole, Range, ScalingPolicy
from tidegate.laws.scaling.load import LoadLawSettings
from tidegate.simulation import traces
from tidegate.simulation.plant import ClientChange, Fault, FaultKind, PlantSettings
from tidegate.simulation.run import SimulationResult, reversals_of, simulate
from tidegate.simulation.traces import PAPER, SimulationScenario, Trace, load_scenario, with_policy
from tidegate_lab.papers.elastic.simulated import worker_waited_for

POLICIES = [ScalingPolicy.LOAD, ScalingPolicy.LENGTH, ScalingPolicy.FEED_FORWARD]


def _scenario(
    trace: Trace, policy: ScalingPolicy, *faults: Fault, **scaling: object
) -> SimulationScenario:
    base = load_scenario("steps", 1)
    changed = msgspec.structs.replace(base.scaling, **scaling)
    whole = msgspec.structs.replace(base, trace=trace, scaling=changed, faults=faults)
    return with_policy(whole, policy)


def _conserved(outcome: SimulationResult) -> bool:
    held = outcome.waiting_at_end + outcome.in_service_at_end
    return outcome.arrived == outcome.consumed + held


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_is_the_same_bytes(policy: ScalingPolicy) -> None:
    scenario = _scenario(traces.random_trace("bursts", 3, 600.0), policy)
    scenario = msgspec.structs.replace(
        scenario, plant=msgspec.structs.replace(scenario.plant, boot_spread=0.3, boot_failure=0.2)
    )
    first, second, other = (msgspec.json.encode(simulate(scenario, seed)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", sorted(traces.KINDS))
def test_every_policy_delivers_every_kind_of_load(kind: str, policy: ScalingPolicy) -> None:
    outcome = simulate(_scenario(traces.random_trace(kind, 11, 600.0), policy), 11)
    assert _conserved(outcome)
    assert outcome.machine_s >= 600.0
    assert 1 <= outcome.replicas_peak <= 16 + 4
    assert len(outcome.series.t_s) == len(outcome.series.ideal) == 600


def test_two_workers_on_a_machine_halve_the_peaks() -> None:
    peaks = [simulate(PAPER[name]).average_load_peak for name in ("figure-4", "figure-5")]
    assert 0.4 <= peaks[1] / peaks[0] <= 0.6


def test_slow_ramp_stays_below_max_load_with_one_warm_machine() -> None:
    outcome = simulate(PAPER["figure-6"])
    assert outcome.late_s == 0.0
    assert worker_waited_for(outcome) is None


def test_the_fast_ramp_waits_for_the_fifth_worker_with_one_warm_machine_and_for_none_with_two() -> (
    None
):
    one, two = simulate(PAPER["figure-7"]), simulate(PAPER["figure-8"])
    assert one.late_s > 10.0
    assert worker_waited_for(one) == 5
    assert two.late_s == 0.0


@pytest.mark.parametrize("name", ["figure-6", "figure-8"])
def test_with_warm_machines_the_load_is_never_above_max_load(name: str) -> None:
    for policy in (ScalingPolicy.LOAD, ScalingPolicy.FEED_FORWARD):
        assert simulate(with_policy(PAPER[name], policy)).above_s == 0.0


@pytest.mark.parametrize("name", ["figure-6", "figure-8"])
def test_the_listing_as_printed_is_above_max_load_a_poll_for_each_worker(name: str) -> None:
    outcome = simulate(PAPER[name], elasticity=LoadLawSettings(looks_ahead=False))
    added = outcome.replicas_peak - 1
    assert outcome.above_s == added * PAPER[name].scaling.polling_interval_s


@pytest.mark.parametrize("scenario", PAPER.values(), ids=PAPER)
def test_every_ramp_of_the_paper_needs_a_machine_that_is_not_there_when_it_begins(
    scenario: SimulationScenario,
) -> None:
    slots = scenario.scaling.slots_per_machine * (1 + (scenario.scaling.warm or 0))
    assert slots * scenario.plant.capacity_per_s < scenario.trace.peak_per_s


def test_feed_forward_needs_no_warm_machine_on_the_papers_ramp() -> None:
    outcome = simulate(with_policy(PAPER["figure-5"], ScalingPolicy.FEED_FORWARD))
    assert outcome.above_s == 0.0
    assert outcome.reversals == 0


# A little more than three replicas do, and a good part of a fifth.
@pytest.mark.parametrize("rate_per_s", [312.0, 430.0])
@pytest.mark.parametrize("policy", [ScalingPolicy.LOAD, ScalingPolicy.FEED_FORWARD])
def test_a_constant_load_causes_no_reversal_once_it_has_settled(
    policy: ScalingPolicy, rate_per_s: float
) -> None:
    trace = traces.sampled("constant", 1800.0, lambda _: rate_per_s)
    outcome = simulate(_scenario(trace, policy), 2)
    assert outcome.reversals <= 2
    assert len(set(outcome.series.replicas[900:])) == 1


@pytest.mark.parametrize("name", ["square", "saw-tooth"])
@pytest.mark.parametrize("policy", POLICIES)
def test_square_and_saw_tooth_loads_cause_bounded_reversals(
    name: str, policy: ScalingPolicy
) -> None:
    scenario = with_policy(load_scenario(name, 1), policy)
    outcome = simulate(scenario)
    # Six swings in the hour: up and down once each is what the load itself asks for.
    assert outcome.reversals <= (24 if policy is not ScalingPolicy.FEED_FORWARD else 12)
    # No windup: what was piled up in one swing is gone in the end.
    assert outcome.series.average_load[-1] <= 2 * max(outcome.series.average_load[:600])


@pytest.mark.parametrize("kind", [FaultKind.STALE, FaultKind.NAN])
@pytest.mark.parametrize("policy", POLICIES)
def test_stale_or_invalid_measurements_cause_no_action(
    kind: FaultKind, policy: ScalingPolicy
) -> None:
    trace = traces.sampled("steps", 1200.0, lambda time: 600.0 if time < 600.0 else 20.0)
    fault = Fault(at_s=590.0, kind=kind, duration_s=300.0)
    scenario = _scenario(trace, policy, fault, polling_interval_s=1.0)
    # The KEDA-like one counts as stale what is older than two of its polls.
    blind = range(590 + int(scenario.scaling.stale_s) + 31, 890)
    outcome = simulate(scenario)
    assert _conserved(outcome)
    acted = [
        one
        for one in outcome.explained
        if one.loop == "queue" and blind.start <= one.t_s <= blind.stop
    ]
    assert acted == []
    # And when it sees again, it acts again.
    assert any(one.t_s > 890 for one in outcome.explained if one.loop == "queue")


def test_machines_that_die_are_replaced_and_nothing_is_lost() -> None:
    outcome = simulate(load_scenario("machine-kills", 4), 4)
    assert _conserved(outcome)
    assert outcome.boots >= 5
    assert outcome.series.replicas[-1] >= 5
    assert outcome.series.average_load[-1] < 200.0


def test_boots_that_fail_are_tried_again() -> None:
    trace = traces.sampled("step", 1800.0, lambda _: 700.0)
    scenario = _scenario(trace, ScalingPolicy.FEED_FORWARD)
    scenario = msgspec.structs.replace(scenario, plant=PlantSettings(boot_failure=0.5))
    outcome = simulate(scenario, 3)
    assert outcome.failed_boots > 0
    assert outcome.series.replicas[-1] >= 7


def test_clients_that_come_bring_a_second_replica_and_take_it_away_with_them() -> None:
    outcome = simulate(load_scenario("clients", 1))
    assert _conserved(outcome)
    assert max(outcome.series.replicas) >= 2
    assert outcome.series.replicas[-1] < max(outcome.series.replicas)


def test_clients_are_spread_over_replicas() -> None:
    joins = [ClientChange(at_s=5.0, role=role, count=6) for role in MemberRole]
    scenario = _scenario(
        traces.sampled("constant", 120.0, lambda _: 150.0),
        ScalingPolicy.CLIENTS,
        replicas=Range(2, 2),
    )
    outcome = simulate(msgspec.structs.replace(scenario, clients=joins))
    assert outcome.waiting_at_end + outcome.in_service_at_end < 150


def test_recommended_decision_is_not_executed() -> None:
    trace = traces.sampled("constant", 300.0, lambda _: 300.0)
    outcome = simulate(_scenario(trace, ScalingPolicy.LOAD, steering=ControlMode.RECOMMEND))
    assert outcome.replicas_peak == 1
    assert outcome.average_load_peak > 10_000


def test_progress_is_told_along_the_way() -> None:
    told: list[float] = []
    simulate(load_scenario("figure-8", 1), progress=told.append)
    assert told == sorted(told)
    assert len(told) == 20
    assert told[-1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("turns", "count"), [([], 0), ([1, 1, 1], 0), ([1, -1], 1), ([1, 1, -1, -1, 1], 2)]
)
def test_a_reversal_is_a_change_of_direction(turns: list[int], count: int) -> None:
    assert reversals_of(turns) == count
