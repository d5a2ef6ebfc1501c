"""Replicas that are not alike: who goes, and that nothing goes and comes back on the same facts."""

from __future__ import annotations

import pytest
from fluid_plant import Plant
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from tidegate.control.queues.autoscaler import Autoscaler, ReplicaCapacities, SampleTotals
from tidegate.core.decisions import CancelDrain, Drain, QueueSample, ReplicaSample
from tidegate.core.topology import ControlMode, Range, Scaling, ScalingPolicy
from tidegate.laws.scaling.wait import WaitTarget

# Of a replica that is well, and the part of it that a slow one does: 13 of 40 messages a second.
SPEED_PER_S, SLOW = 40.0, 1.0 / 3.0
# Until each is known, and until what arrives on average has forgotten how that was done.
LEARNING_S, CALM_S = 30, 400
PLEDGE = WaitTarget(wait_s=8.0, metric="wait_p99", growth_per_s2=1.0)


def scaling(policy: ScalingPolicy, most: int, **rest: object) -> Scaling:
    usual = {"replicas": Range(1, most), "cooldown_period_s": 6.0, "inhibition_s": 3.0}
    return Scaling(policy=policy, **{**usual, **rest})  # type: ignore[arg-type]


def shown(plant: Plant, told: Scaling) -> Plant:
    """Every replica has been at its limit, while a person steered, and nothing of that is left."""
    count = len(plant.replicas)
    plant.autoscaler.scaling = scaling(
        told.policy, count, steering=ControlMode.MANUAL, replicas_wanted=count
    )
    calm, plant.rate = plant.rate, lambda at: 2.0 * SPEED_PER_S * count
    plant.run(LEARNING_S)
    for one in plant.replicas:
        one.waiting = 0.0
    plant.rate = calm
    plant.run(CALM_S)
    plant.autoscaler.scaling = told
    del plant.history[:-1]
    plant.decisions.clear()
    return plant


@pytest.mark.parametrize("count", [2, 3, 4])
def test_recovered_slow_replica_causes_no_reversals(count: int) -> None:
    """The mean of all fits into one replica, what the slow one is known to do does not."""
    told = scaling(ScalingPolicy.AGREEMENT, 4)
    plant = Plant.serving(
        count,
        Autoscaler(told),
        lambda at: 12.0,
        capacity_per_s=lambda replicas: SPEED_PER_S,
        part={1: SLOW},
        pledge=PLEDGE,
    )
    shown(plant, told)
    plant.part.clear()
    plant.run(600)
    assert not plant.actions(CancelDrain)
    assert plant.reversals == 0
    # Nobody stays whom nobody needs.
    assert plant.counts[-1] == 1
    assert Drain(1) in plant.actions(Drain)


def test_a_removal_that_the_survivors_could_not_bear_is_not_begun() -> None:
    """24.3/s, and 5/s more until another serves: for one of 36.8, not for one of 30.4.

    36.8 is the mean of all three, and 30.4 what the first does: it is not slow enough to go first.
    """
    told = scaling(ScalingPolicy.AGREEMENT, 3)
    plant = Plant.serving(
        3,
        Autoscaler(told),
        lambda at: 24.3,
        capacity_per_s=lambda replicas: SPEED_PER_S,
        part={1: 0.76},
        pledge=PLEDGE,
    )
    shown(plant, told).run(300)
    assert plant.counts == [3, 2]
    assert plant.actions(Drain) == [Drain(3)]
    assert not plant.actions(CancelDrain)


@settings(max_examples=examples(15), deadline=None)
@given(
    parts=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=7),
    load=st.floats(0.0, 0.9),
    policy=st.sampled_from([ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT]),
    least=st.integers(1, 3),
    wait_s=st.floats(0.5, 30.0),
    growth_per_s2=st.sampled_from([0.0, 0.5, 2.0]),
    is_well=st.booleans(),
)
def test_on_a_constant_load_no_number_of_replicas_is_come_to_twice(
    parts: list[float],
    load: float,
    policy: ScalingPolicy,
    least: int,
    wait_s: float,
    growth_per_s2: float,
    is_well: bool,
) -> None:
    """Whatever each is known to do, be it true still or that all are well again."""
    count = len(parts)
    told = scaling(policy, max(count, least), replicas=Range(least, max(count, least)))
    rate = load * SPEED_PER_S * sum(parts)
    plant = Plant.serving(
        count,
        Autoscaler(told),
        lambda at: rate,
        capacity_per_s=lambda replicas: SPEED_PER_S,
        part=dict(enumerate(parts, 1)),
        pledge=WaitTarget(wait_s=wait_s, growth_per_s2=growth_per_s2),
    )
    shown(plant, told)
    if is_well:
        plant.part.clear()
    plant.run(300)
    assert len(set(plant.counts)) == len(plant.counts), plant.counts
    assert not plant.actions(CancelDrain)
    assert all(min(count, least) <= one <= max(count, least) for one in plant.counts)


# What is known of each


def known(**rates: float) -> tuple[ReplicaCapacities, SampleTotals]:
    replicas = [
        ReplicaSample(number=int(name[1:]), consumed_per_s=rate, waiting=1000, age_s=100.0)
        for name, rate in rates.items()
    ]
    reading = SampleTotals(QueueSample(queue="orders", at=1.0, replicas=replicas))
    capacities = ReplicaCapacities()
    capacities.learn(reading, 1.0)
    return capacities, reading


def test_replica_far_below_the_others_is_slow() -> None:
    for rates, slow in (
        ({"r1": 13.0, "r2": 40.0}, {1}),
        ({"r1": 31.0, "r2": 40.0, "r3": 40.0}, set()),
        ({"r1": 29.0, "r2": 40.0, "r3": 40.0}, {1}),
        ({"r1": 13.0}, set()),
    ):
        capacities, reading = known(**rates)
        assert capacities.slow(reading) == slow


def test_capacity_of_fewer_replicas_is_the_mean_of_the_rest() -> None:
    capacities, reading = known(r1=10.0, r2=20.0, r3=60.0)
    # Of the fourth nothing was seen yet.
    assert capacities.of_fewer([4, 1, 2, 3]) == (30.0, 10.0, 15.0, 30.0)
    assert capacities.of_fewer([3, 2, 1])[-1] == capacities.typical(reading)
    assert ReplicaCapacities().of_fewer([1, 2]) == ()
