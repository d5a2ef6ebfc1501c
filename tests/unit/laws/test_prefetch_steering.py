"""The synchronous heart: a consumer is steered to its goal, whatever happens to either."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from steered_consumer import SteeredConsumer, back_after

from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.controller import ControllerMode, Saturation, WorkloadSchedule
from tidegate.laws.prefetch.loop import PrefetchRegulator, explain_step

# 80 msg/s per unit of prefetch.
MODEL = PrefetchModel(a=0.1, b=72.0)
GOAL = PrefetchGoal(rate_per_s=400.0)


def settled(goal: PrefetchGoal = GOAL, **plant: float) -> tuple[SteeredConsumer, PrefetchRegulator]:
    """A loop that has come to rest."""
    consumer = SteeredConsumer(**plant)  # type: ignore[arg-type]
    steering = PrefetchRegulator(goal, MODEL, start=10)
    consumer.run(steering, 40)
    return consumer, steering


@pytest.mark.parametrize("kind", [ControllerKind.PI, ControllerKind.PID])
@pytest.mark.parametrize("start", [1, 10, 60])
def test_a_target_is_reached_within_the_time_asked_for(kind: ControllerKind, start: int) -> None:
    consumer = SteeredConsumer()
    steering = PrefetchRegulator(msgspec.structs.replace(GOAL, controller=kind), MODEL, start)

    rates = consumer.run(steering, 90)

    assert back_after(rates, 400.0, band=0.02) <= 30 + 4
    assert set(consumer.prefetches[-200:]) == {5} or set(consumer.prefetches[-200:]) <= {4, 5, 6}


def test_a_fraction_averages_out_within_a_sample() -> None:
    goal = msgspec.structs.replace(GOAL, rate_per_s=420.0)
    consumer, steering = settled(goal)

    rates = consumer.run(steering, 30)

    # 5.25: whole numbers alone are worth 400 or 480.
    assert rates == pytest.approx([420.0] * 30, rel=0.02)
    assert set(consumer.prefetches[-100:]) == {5, 6}


def test_without_a_model_it_guesses_by_littles_law_and_says_so_until_it_has_learned() -> None:
    consumer = SteeredConsumer(noise=0.02)
    steering = PrefetchRegulator(GOAL, None, start=10)

    consumer.run(steering, 2)
    assert consumer.steps[-1].level == 10.0
    assert "nothing is known yet: held" in map(str, consumer.steps[-1].notes)
    consumer.run(steering, 60)

    # 770/10 at first, and 1.5 times that to be cautious.
    guessed = [
        step
        for step in consumer.steps
        if any("no model: guessed" in n for n in map(str, step.notes))
    ]
    assert guessed
    assert back_after(consumer.rates[1:], 400.0) <= 60


def test_without_a_model_a_start_far_beyond_the_knee_stays_stable() -> None:
    consumer = SteeredConsumer(noise=0.02, looks_inside=False)
    steering = PrefetchRegulator(GOAL, None, start=150)

    consumer.run(steering, 300)
    rates = consumer.run(steering, 100)

    assert math.fsum(rates) / 100 == pytest.approx(400.0, rel=0.03)


def test_a_starved_queue_is_no_reason_to_ask_for_more() -> None:
    consumer, steering = settled()
    before = steering.level

    consumer.supply_per_s = 100.0
    consumer.run(steering, 60)

    assert steering.level == pytest.approx(before, abs=0.3)
    assert "starved" in map(str, consumer.steps[-1].notes)
    consumer.supply_per_s = math.inf
    assert back_after(consumer.run(steering, 60), 400.0) <= 10


@pytest.mark.parametrize("target", [900.0, 3000.0])
def test_a_target_above_the_ceiling_saturates_says_so_and_is_left_quickly(target: float) -> None:
    # Only the broker looks on: nobody knows what waits in the consumer.
    consumer, steering = settled(looks_inside=False)

    steering.change(msgspec.structs.replace(GOAL, rate_per_s=target, high=12))
    consumer.run(steering, 300)
    assert consumer.steps[-1].saturated is Saturation.HIGH
    assert consumer.steps[-1].level == 12.0
    assert "the ceiling is about 770/s" in map(str, consumer.steps[-1].notes)
    steering.change(msgspec.structs.replace(GOAL, high=12))

    assert back_after(consumer.run(steering, 60), 400.0) <= 30


def test_a_climb_beyond_the_knee_that_reached_no_limit_is_left_as_quickly() -> None:
    consumer, steering = settled(looks_inside=False)

    steering.change(msgspec.structs.replace(GOAL, rate_per_s=1500.0))
    while steering.level <= 17.0:
        consumer.run(steering, 1)
    assert consumer.steps[-1].saturated is Saturation.NONE
    steering.change(GOAL)

    assert back_after(consumer.run(steering, 60), 400.0) <= 30


@pytest.mark.parametrize("kind", [ControllerKind.PI, ControllerKind.PID])
@pytest.mark.parametrize("target", [900.0, 1500.0, 3000.0])
def test_where_only_the_broker_looks_on_nothing_is_hoarded_either(
    target: float, kind: ControllerKind
) -> None:
    goal = msgspec.structs.replace(GOAL, controller=kind)
    consumer, steering = settled(goal, looks_inside=False, noise=0.02)

    steering.change(msgspec.structs.replace(goal, rate_per_s=target))
    rates = consumer.run(steering, 300)

    assert math.fsum(rates[-100:]) / 100 == pytest.approx(770.0, rel=0.02)
    # 770/s · 12.5 ms are under way. Now and then it climbs, to see whether that is still so.
    levels = [step.level for step in consumer.steps[-100:]]
    assert math.fsum(levels) / 100 < 35.0
    assert max(levels) < 70.0
    ceilings = [
        note for note in map(str, consumer.steps[-1].notes) if note.startswith("the ceiling is")
    ]
    assert ceilings
    assert ceilings[0].endswith("/s: more prefetch brings no more")
    steering.change(goal)
    assert back_after(consumer.run(steering, 60), 400.0) <= 30
    assert not any("ceiling" in note for note in map(str, consumer.steps[-1].notes))


@pytest.mark.parametrize("times", [2.0, 3.0, 5.0])
def test_a_longer_way_is_no_plateau_whatever_the_model_says_of_the_rate(times: float) -> None:
    goal = msgspec.structs.replace(GOAL, adaptive=False)
    consumer, steering = settled(goal, looks_inside=False, noise=0.02)

    consumer.round_trip_s *= times
    rates = consumer.run(steering, 150)

    assert math.fsum(rates[-50:]) / 50 == pytest.approx(400.0, rel=0.03)
    assert not any("ceiling" in note for step in consumer.steps for note in map(str, step.notes))


@pytest.mark.parametrize("kind", [ControllerKind.PI, ControllerKind.PID])
@pytest.mark.parametrize("target", [900.0, 3000.0])
def test_a_target_above_what_the_handler_can_do_is_not_hoarded_for(
    target: float, kind: ControllerKind
) -> None:
    goal = msgspec.structs.replace(GOAL, controller=kind)
    consumer, steering = settled(goal)

    steering.change(msgspec.structs.replace(goal, rate_per_s=target))
    rates = consumer.run(steering, 300)

    # All that the handler can do, with a round trip's worth at hand: 770/s · 12.5 ms.
    assert rates[-100:] == pytest.approx([770.0] * 100, rel=0.01)
    assert 1.0 < consumer.held < 10.0
    assert consumer.steps[-1].saturated is Saturation.NONE
    assert "the ceiling is about 770/s: the handler is kept up with" in map(
        str, consumer.steps[-1].notes
    )
    steering.change(goal)
    assert back_after(consumer.run(steering, 60), 400.0) <= 30
    assert not any("ceiling" in note for note in map(str, consumer.steps[-1].notes))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_after_a_minute_in_which_the_handler_could_not_keep_up_the_way_back_is_short(
    part: float,
) -> None:
    consumer, steering = settled(noise=0.02)

    consumer.handler_per_s = part * 400.0
    saturated = consumer.run(steering, 60)
    assert saturated[-20:] == pytest.approx([part * 400.0] * 20, rel=0.02)
    assert consumer.held < 12.0
    consumer.handler_per_s = 770.0

    # About half of the time asked for; from a consumer that was filled to its limit it took all.
    assert back_after(consumer.run(steering, 60), 400.0) <= 16


def test_a_handler_that_can_just_do_it_gets_all_that_was_asked_for() -> None:
    consumer, steering = settled(noise=0.03, handler_per_s=404.0)

    rates = consumer.run(steering, 200)

    assert math.fsum(rates[100:]) / 100 == pytest.approx(400.0, rel=0.01)


def test_from_manual_to_automatic_without_a_bump() -> None:
    consumer, steering = settled()

    steering.change(msgspec.structs.replace(GOAL, manual=8))
    consumer.run(steering, 5)
    assert {step.level for step in consumer.steps[-5:]} == {8.0}
    assert consumer.steps[-1].mode is ControllerMode.MANUAL
    steering.change(GOAL)
    consumer.run(steering, 1)

    # The integral's one step, and no more.
    first = consumer.steps[-1]
    assert first.level == pytest.approx(8.0 + steering.gains.integral * first.error_per_s, abs=0.05)
    assert back_after(consumer.run(steering, 60), 400.0) <= 30


def test_lost_measurements_are_held_and_then_the_fallback_is_set() -> None:
    consumer, steering = settled()
    before = steering.level

    held = [steering.step(None) for _ in range(9)]
    fallen = [steering.step_without_sample() for _ in range(5)]

    assert {step.level for step in held} == {before}
    assert fallen[-1].mode is ControllerMode.FALLBACK
    assert fallen[-1].level == GOAL.fallback
    consumer.at += 14.0
    assert back_after(consumer.run(steering, 60), 400.0) <= 30


def test_keeping_up_the_handler_is_busy_and_next_to_nothing_waits() -> None:
    goal = PrefetchGoal(held=2.0)
    for start in (1, 10, 150):
        consumer = SteeredConsumer()
        steering = PrefetchRegulator(goal, MODEL, start)
        consumer.run(steering, 90)

        rates = consumer.run(steering, 30)

        assert rates == pytest.approx([770.0] * 30, rel=0.02)
        # A whole number that stays while it is off by one.
        assert consumer.held == pytest.approx(2.0, abs=1.0)


def test_keeping_up_where_only_the_broker_looks_on() -> None:
    consumer = SteeredConsumer(looks_inside=False)
    steering = PrefetchRegulator(PrefetchGoal(held=2.0), MODEL, 1)
    consumer.run(steering, 90)

    rates = consumer.run(steering, 30)

    assert rates == pytest.approx([770.0] * 30, rel=0.02)
    assert consumer.held < 4.0


def test_a_handler_twice_as_slow_is_kept_up_with() -> None:
    consumer = SteeredConsumer()
    steering = PrefetchRegulator(PrefetchGoal(held=2.0), MODEL, 10)
    consumer.run(steering, 60)

    consumer.handler_per_s = 385.0
    consumer.run(steering, 60)

    assert consumer.rates[-20:] == pytest.approx([385.0] * 20, rel=0.02)
    assert consumer.held == pytest.approx(2.0, abs=0.5)


def test_a_round_trip_that_doubles_is_learned() -> None:
    consumer, steering = settled(noise=0.02)

    consumer.round_trip_s *= 2.0
    consumer.run(steering, 30)
    for target in (250.0, 400.0) * 4:
        steering.change(msgspec.structs.replace(GOAL, rate_per_s=target))
        consumer.run(steering, 30)

    model = steering.model
    assert model is not None
    assert model.worth_per_s == pytest.approx(40.0, rel=0.25)
    assert any("redesigned" in note for step in consumer.steps for note in map(str, step.notes))


def test_controller_continues_from_a_prefetch_set_by_others() -> None:
    goal = msgspec.structs.replace(GOAL, rate_per_s=2400.0)
    steering = PrefetchRegulator(goal, MODEL, start=10)
    sample = ConsumerSample(at=1.0, interval_s=1.0, arrived_per_s=2400.0, prefetch=30.0)

    step = steering.step(sample)

    assert step.level == pytest.approx(30.0)
    assert "30 was set in place of 10" in map(str, step.notes)


def test_a_model_of_other_samples_is_made_fit() -> None:
    goal = msgspec.structs.replace(GOAL, sample_s=0.5)
    steering = PrefetchRegulator(goal, PrefetchModel(a=0.25, b=60.0), start=10)

    model = steering.model

    assert model is not None
    assert (model.a, model.worth_per_s) == pytest.approx((0.5, 80.0))


def test_of_several_learned_models_that_of_the_workload_at_hand_is_run_with() -> None:
    # Small messages nearby, and large ones far away: 160 and 40 msg/s per unit of prefetch.
    near, far = PrefetchModel(a=0.1, b=144.0), PrefetchModel(a=0.1, b=36.0)
    schedule = WorkloadSchedule({"orders/near": near, "orders/far": far})
    goal = msgspec.structs.replace(GOAL, adaptive=False)
    consumer = SteeredConsumer(round_trip_s=1.0 / 40.0, handler_per_s=3000.0, noise=0.02)
    steering = PrefetchRegulator(goal, None, start=10, schedule=schedule)
    # Before anything was seen, the one whose gains are stable on both.
    assert steering.model == near

    rates = consumer.run(steering, 60)
    assert steering.model == far
    assert any(
        "scheduled: the workload is that of orders/far" in map(str, s.notes) for s in consumer.steps
    )
    assert back_after(rates, 400.0) <= 30 + 5
    before = consumer.steps[-1].level
    consumer.round_trip_s = 1.0 / 160.0
    consumer.run(steering, 1)
    # Without a bump of its own: the rate's jump is an outlier at first.
    assert consumer.steps[-1].level == pytest.approx(before, rel=0.05)
    rates = consumer.run(steering, 60)

    assert steering.model == near
    assert back_after(rates, 400.0) <= 30


def test_a_workload_between_two_does_not_flicker() -> None:
    models = {"a": PrefetchModel(a=0.1, b=50.0), "b": PrefetchModel(a=0.1, b=100.0)}
    consumer = SteeredConsumer(round_trip_s=1.0 / 78.0, noise=0.05)
    steering = PrefetchRegulator(GOAL, None, start=10, schedule=WorkloadSchedule(models))

    consumer.run(steering, 300)

    changes = [
        s for s in consumer.steps if any(n.startswith("scheduled") for n in map(str, s.notes))
    ]
    assert len(changes) <= 1


def test_a_settling_time_that_cannot_be_had_is_said() -> None:
    goal = msgspec.structs.replace(GOAL, settle_s=3.0)
    consumer = SteeredConsumer()
    steering = PrefetchRegulator(goal, MODEL, start=10)

    rates = consumer.run(steering, 60)

    assert any("3 s to settle cannot be had" in note for note in map(str, consumer.steps[0].notes))
    assert back_after(rates, 400.0) <= 30


def test_every_step_is_explained() -> None:
    consumer, steering = settled(noise=0.02)

    decision = explain_step(consumer.steps[-1], GOAL, steering.model, service="orders", output=5)

    assert (decision.loop, decision.service, decision.law) == ("prefetch", "orders", "prefetch PI")
    assert {"target_per_s", "rate_per_s", "error_per_s", "a", "b"} <= set(decision.inputs)
    assert {"proportional", "integral", "derivative", "wanted", "level", "saturated"} <= set(
        decision.outputs
    )
    assert decision.outputs["output"] == 5.0
    assert "the target of 400/s" in decision.reason
    # As telemetry and the wire have it.
    assert msgspec.json.decode(msgspec.json.encode(decision), type=type(decision)) == decision
    lost = explain_step(steering.step_without_sample(), GOAL, None, service="orders")
    assert msgspec.json.decode(msgspec.json.encode(lost), type=type(lost)) == lost
    assert lost.rule == "held"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate_per_s": 0.0}, "above 0"),
        ({"rate_per_s": -5.0}, "above 0"),
        ({"rate_per_s": math.nan}, "above 0"),
        ({"low": 0}, "unlimited"),
        ({"low": 9, "high": 8}, "the lower one first"),
        ({"settle_s": 0.5}, "settle"),
        ({"sample_s": 0.0}, "above 0"),
        ({"overshoot": 0.9}, "overshoot"),
        ({"fallback": 0}, "fallback"),
        ({"manual": 0}, "manual"),
        ({"held": -1.0}, "wait"),
        ({"model": PrefetchModel(a=1.0, b=3.0)}, r"\|a\| < 1"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        PrefetchRegulator(msgspec.structs.replace(GOAL, **change), None, start=10)


def test_a_model_file_comes_back_as_it_was(tmp_path: Path) -> None:
    model = replace_known(MODEL)
    file = tmp_path / "orders.json"

    model.save(file)

    assert PrefetchModel.load(file) == model
    MODEL.save(file)
    assert math.isnan(PrefetchModel.load(file).ceiling_per_s)
    file.write_text('{"a": 2, "b": 1}')
    with pytest.raises(InvalidValue, match="identify it again"):
        PrefetchModel.load(file)
    with pytest.raises(InvalidValue, match="cannot be read"):
        PrefetchModel.load(tmp_path / "none.json")


def replace_known(model: PrefetchModel) -> PrefetchModel:
    return msgspec.structs.replace(
        model,
        ceiling_per_s=770.0,
        r2_test=0.9,
        rmse_test_per_s=12.0,
        r2_train=0.91,
        rmse_train_per_s=11.0,
        queue="orders",
    )


@pytest.mark.parametrize("rounds", [1.4, 2.2, 2.4, 2.7, 3.3])
def test_credit_that_comes_round_in_bursts_is_steered_by_its_mean(rounds: float) -> None:
    """A sample sees two rounds or three, and the rarer of the two is no outlier."""
    sample_s, target = 0.1, 150.0
    worth_per_s = rounds / sample_s
    goal = PrefetchGoal(rate_per_s=target, sample_s=sample_s, settle_s=3.0, adaptive=False)
    model = PrefetchModel(a=0.0, b=worth_per_s, sample_s=sample_s)
    steering = PrefetchRegulator(goal, model, start=5)
    rates = []
    for k in range(600):
        came = math.floor((k + 1) * rounds) - math.floor(k * rounds)
        prefetch = steering.level
        rates.append(came * prefetch / sample_s)
        steering.step(
            ConsumerSample(
                at=(k + 1) * sample_s,
                interval_s=sample_s,
                arrived_per_s=rates[-1],
                prefetch=prefetch,
            )
        )

    assert math.fsum(rates[100:]) / 500 == pytest.approx(target, rel=0.01)


def test_keep_up_holds_the_prefetch_without_a_known_reserve() -> None:
    steering = PrefetchRegulator(PrefetchGoal(), None, start=100)

    for k in range(30):
        # Four slots of five seconds: only their node looks, and has seen none of it wait yet.
        steering.step(
            ConsumerSample(at=float(k), interval_s=1.0, arrived_per_s=0.8, prefetch=100.0)
        )

    assert steering.level == 100.0


@pytest.mark.parametrize("goal", [GOAL, PrefetchGoal()], ids=["rate", "keep up"])
@pytest.mark.parametrize("model", [None, MODEL], ids=["guessed", "known"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_sensor_that_tells_nonsense_of_the_handler_raises_nothing_and_moves_within_limits(
    goal: PrefetchGoal, model: PrefetchModel | None, number: float
) -> None:
    for field in ("held", "busy", "processed_per_s"):
        steering = PrefetchRegulator(goal, model, start=10)
        said = {"held": 1.0, "busy": 0.5, "processed_per_s": 300.0} | {field: number}
        for k in range(20):
            sample = ConsumerSample(
                at=float(k),
                interval_s=1.0,
                arrived_per_s=300.0,
                processed_per_s=said["processed_per_s"],
                busy=said["busy"],
                held=said["held"],
                prefetch=steering.level,
            )
            step = steering.step(sample)
            assert goal.low <= step.level <= goal.high
            assert goal.low <= steering.tick() <= goal.high


def test_p_says_where_it_will_rest_and_rests_there() -> None:
    goal = msgspec.structs.replace(GOAL, rate_per_s=400.0, controller=ControllerKind.P)
    plant = SteeredConsumer()
    steering = PrefetchRegulator(goal, PrefetchModel(a=0.1, b=72.0), start=5)
    rests = plant.run(steering, 40)[-1]
    assert rests == pytest.approx(80.0, rel=0.02)
    said = "P keeps an offset: it rests at about 80/s with a prefetch of 1, and not at 400/s"
    assert said in str(steering.given_up)
    assert any(note.startswith(said) for note in map(str, plant.steps[-1].notes))


@pytest.mark.parametrize("kind", [ControllerKind.PI, ControllerKind.PID])
def test_controller_with_an_integral_has_no_offset(kind: ControllerKind) -> None:
    goal = msgspec.structs.replace(GOAL, rate_per_s=400.0, controller=kind)
    plant = SteeredConsumer()
    steering = PrefetchRegulator(goal, PrefetchModel(a=0.1, b=72.0), start=5)
    plant.run(steering, 40)
    assert not steering.given_up
    assert not any("offset" in note for step in plant.steps for note in map(str, step.notes))


def test_a_model_that_is_taken_away_is_forgotten_and_the_level_held_until_there_is_a_guess() -> (
    None
):
    # Off by a factor of four, and nothing is learned meanwhile.
    wrong = PrefetchModel(a=0.1, b=288.0)
    goal = msgspec.structs.replace(GOAL, model=wrong, adaptive=False)
    consumer = SteeredConsumer()
    steering = PrefetchRegulator(goal, None, start=10)
    consumer.run(steering, 5)
    level = steering.level

    steering.change(msgspec.structs.replace(goal, model=None))
    assert steering.model is None
    assert steering.is_guessed
    consumer.run(steering, 2)
    assert [step.level for step in consumer.steps[-2:]] == [level, level]
    rates = consumer.run(steering, 60)
    assert rates[-1] == pytest.approx(400.0, rel=0.03)
    assert steering.model is not None
    assert steering.model.worth_per_s < 2 * MODEL.worth_per_s


def test_learned_model_stays_when_the_given_model_is_removed() -> None:
    wrong = PrefetchModel(a=0.1, b=216.0)
    goal = msgspec.structs.replace(GOAL, model=wrong)
    consumer = SteeredConsumer(noise=0.02)
    steering = PrefetchRegulator(goal, None, start=2)
    consumer.run(steering, 100)
    # Only what moves is learned from.
    goal = msgspec.structs.replace(goal, rate_per_s=600.0)
    steering.change(goal)
    consumer.run(steering, 100)
    learned = steering.model
    assert learned is not None
    assert learned.worth_per_s == pytest.approx(MODEL.worth_per_s, rel=0.2)

    steering.change(msgspec.structs.replace(goal, model=None))
    assert steering.model is not None
    assert (steering.model.a, steering.model.b) == (learned.a, learned.b)
    assert not steering.is_guessed


def test_a_goals_own_model_ends_the_choice_among_learned_ones() -> None:
    schedule = WorkloadSchedule({"near": MODEL, "far": PrefetchModel(a=0.1, b=9.0)})
    steering = PrefetchRegulator(GOAL, None, start=5, schedule=schedule)
    own = PrefetchModel(a=0.1, b=70.0)
    goal = msgspec.structs.replace(GOAL, model=own, adaptive=False)
    steering.change(goal)
    # Eight times as far: the schedule would take the other one.
    SteeredConsumer(round_trip_s=0.1).run(steering, 40)
    assert steering.model is not None
    assert steering.model.b == 70.0
