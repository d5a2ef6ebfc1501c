"""The procedure of tuning on plants whose answer is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_consumer import SimulatedConsumer

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.prefetch import INFORMATIONAL_FIELDS, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.loop import PrefetchRegulator
from tidegate.tuning import ExperimentOrigin, TuningGoal, sweep_prefetches
from tidegate.tuning.experiment import ExperimentPhase, TuningRefused, TuningResult, tune
from tidegate.tuning.result import TunedModel

WISH = TuningGoal(target_per_s=400.0)


def paper(ceiling_per_s: float = 730.0, **others: Any) -> SimulatedConsumer:
    """Return a new consumer: prefetch 9 is worth 730 msg/s, and the handler can do no more."""
    return SimulatedConsumer(ceiling_per_s=ceiling_per_s, **others)


async def tuned(consumer: SimulatedConsumer, wish: TuningGoal = WISH) -> TuningResult:
    return await tune(
        consumer, wish, lambda *_: None, ExperimentOrigin("simulated", "orders", made_at=1.0)
    )


async def refused(consumer: SimulatedConsumer, wish: TuningGoal = WISH) -> TuningRefused:
    with pytest.raises(TuningRefused) as caught:
        await tuned(consumer, wish)
    return caught.value


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("a", "b", "ceiling"), [(0.2631, 59.73, 1780.0), (0.02, 74.0, 770.0), (0.7, 10.0, 900.0)]
)
async def test_a_and_b_are_found_within_their_standard_errors(
    seed: int, a: float, b: float, ceiling: float
) -> None:
    consumer = SimulatedConsumer(a, b, ceiling_per_s=ceiling, noise_per_s=8.0, seed=seed)

    model = (await tuned(consumer)).model

    # Four are passed by one in 16 000.
    assert abs(model.a - a) < 4.0 * model.a_error
    assert abs(model.b - b) < 4.0 * model.b_error
    assert model.r2_test > 0.9
    assert model.worth_per_s == pytest.approx(b / (1.0 - a), rel=0.15)


async def test_the_knee_and_the_ceiling_are_found() -> None:
    found = await tuned(paper(ceiling_per_s=1783.0))

    # The paper's plant is a line up to 22.
    assert found.model.low == 1
    assert 15 <= found.model.high <= 22
    assert found.model.ceiling_per_s == pytest.approx(1783.0, rel=0.02)


async def test_a_sweep_is_cheap_and_looks_at_the_far_end() -> None:
    consumer = paper(ceiling_per_s=1783.0)

    record = (await tuned(consumer)).record

    swept = [one.prefetch for one in record.of(ExperimentPhase.SWEEP)]
    assert len(swept) <= 36
    assert len(set(swept)) < len(sweep_prefetches(1, 360)) - 3
    assert record.open_loop[-1].prefetch == 360


async def test_held_out_samples_are_not_fitted() -> None:
    found = await tuned(paper())

    assert found.model.n_train == 60
    assert found.model.n_test == 20
    assert {one.phase for one in found.record.measured} == set(ExperimentPhase)


@pytest.mark.parametrize("kind", list(ControllerKind))
async def test_the_controller_keeps_what_was_asked_for(kind: ControllerKind) -> None:
    found = await tuned(paper(), replace(WISH, kind=kind))

    controller = found.model.controller
    assert controller.kind is kind
    assert controller.settle_s <= 30.0
    assert controller.overshoot <= 0.05 + 1e-6
    assert all(abs(complex(*pole)) < 1.0 for pole in controller.poles)
    assert (controller.offset > 0.0) == (kind is ControllerKind.P)


async def test_designed_gains_are_the_running_gains() -> None:
    found = await tuned(paper())

    steering = PrefetchRegulator(WISH.goal(), found.model.plain(), start=1)

    assert steering.gains == found.loop.gains
    # The rest is reserve.
    assert found.model.controller.settle_s < 0.6 * WISH.settle_s


async def test_a_shorter_sample_has_more_samples_to_settle() -> None:
    found = await tuned(paper(), replace(WISH, sample_s=0.5))

    assert found.model.sample_s == 0.5
    assert found.model.controller.settle_s <= 30.0


async def test_the_same_seed_moves_the_prefetch_the_same_way() -> None:
    first, second = paper(seed=1), paper(seed=2)

    await tuned(first)
    await tuned(second)

    assert first.prefetches[-80:] == second.prefetches[-80:]


async def test_a_line_without_a_knee_is_steered_and_the_note_says_so() -> None:
    found = await tuned(SimulatedConsumer(noise_per_s=20.0), replace(WISH, target_per_s=5000.0))

    assert found.model.high == 360
    assert "still grows at prefetch 360" in found.model.notes[0]


@pytest.mark.parametrize("seed", range(5))
async def test_a_curve_is_fitted_where_the_target_is(seed: int) -> None:
    bent = SimulatedConsumer(a=0.02, b=70.0, bend=0.05, ceiling_per_s=1000.0, seed=seed)

    found = await tuned(replace(bent, noise_per_s=10.0))

    # 400 msg/s are had from 8.
    assert 8 <= found.model.high <= 40
    assert found.model.r2_test > 0.8


async def test_samples_of_a_few_round_trips_are_noted() -> None:
    # Prefetch 1 gives 81 msg/s: a message is away for 12 ms.
    found = await tuned(paper(), replace(WISH, sample_s=0.1))

    assert "away for about 12 ms" in found.model.notes[-1]


async def test_a_prefetch_that_does_not_matter_gets_a_fixed_value() -> None:
    said = await refused(SimulatedConsumer(b=900.0, ceiling_per_s=800.0))

    assert "prefetch does not matter here" in str(said)
    assert "A fixed prefetch of 1 is right" in str(said)
    assert said.record is not None
    assert said.record.open_loop


async def test_a_knee_at_two_leaves_nothing_to_steer() -> None:
    said = await refused(SimulatedConsumer(a=0.0, b=400.0, ceiling_per_s=800.0))

    assert "A fixed prefetch of 2 is right" in str(said)


async def test_a_target_above_the_ceiling_says_the_ceiling() -> None:
    said = await refused(paper(), replace(WISH, target_per_s=900.0))

    assert re.search(r"900 msg/s is above the ceiling: 7[23]\d msg/s", str(said))
    assert "add consumers" in str(said)


async def test_a_target_beyond_an_unbent_range_asks_for_a_longer_one() -> None:
    said = await refused(SimulatedConsumer(), replace(WISH, high=8, target_per_s=900.0))

    assert "allow more with --to" in str(said)


async def test_a_target_below_prefetch_one_cannot_be_had() -> None:
    said = await refused(paper(), replace(WISH, target_per_s=40.0))

    assert "below what prefetch 1 gives already" in str(said)


async def test_a_poor_fit_designs_nothing() -> None:
    said = await refused(paper(ceiling_per_s=1783.0, noise_per_s=700.0))

    assert "designed" not in str(said)
    assert "held-out" in str(said) or "does not" in str(said)


async def test_an_empty_queue_is_no_measurement() -> None:
    said = await refused(paper(is_starved=lambda _: True))

    assert "the queue was empty in 4 of 4 samples" in str(said)
    assert "some thousand messages" in str(said)


async def test_a_queue_that_runs_empty_says_how_many_are_needed() -> None:
    said = await refused(SimulatedConsumer(ceiling_per_s=730.0, is_starved=lambda k: k > 30))

    # 730 a second at most, for 34 samples of a sweep and twice 80 after it.
    assert "Let 140,000 messages wait" in str(said)
    assert "no --worker" in str(said)


async def test_a_probe_that_cannot_feed_itself_is_not_told_to_be_a_probe() -> None:
    said = await refused(paper(is_starved=lambda _: True, feeds_itself=True))

    assert "the queue was empty in 4 of 4 samples" in str(said)
    assert "--probe" not in str(said)
    assert "--handler-time" in str(said)


async def test_record_is_kept_when_the_broker_ends() -> None:
    async def cut_off(prefetch: int) -> None:
        consumer.prefetch = prefetch
        if len(consumer.prefetches) == 20:
            raise Unavailable("nobody answers")

    consumer = SimulatedConsumer(ceiling_per_s=730.0)
    consumer.set_prefetch = cut_off  # type: ignore[method-assign]

    said = await refused(consumer)

    assert "cut short: nobody answers" in str(said)
    assert said.record is not None
    assert len(said.record.open_loop) > 5


async def test_some_empty_moments_are_left_out() -> None:
    found = await tuned(paper(is_starved=lambda k: k % 9 == 5))

    assert found.record.starved > 5
    assert found.model.n_train < 60
    assert "were left out" in found.model.notes[-1]


async def test_curve_is_refused_when_no_message_arrived() -> None:
    said = await refused(SimulatedConsumer(a=0.0, b=0.0, noise_per_s=0.0))

    assert "not one message arrived" in str(said)


async def test_an_impossible_design_shows_its_poles() -> None:
    said = await refused(paper(), replace(WISH, settle_s=2.0))

    assert "the model is good" in str(said)
    assert "poles" in str(said)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"target_per_s": 0.0}, "above 0"),
        ({"target_per_s": float("nan")}, "above 0"),
        ({"low": 0}, "0 means unlimited"),
        ({"low": 10, "high": 12}, "too few prefetches"),
        ({"settle_s": 0.5}, "cannot settle"),
        ({"sample_s": 0.001}, "too few messages"),
        ({"excited_samples": 10}, "too little excitation"),
    ],
)
def test_invalid_wish_is_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        replace(WISH, **wrong)  # type: ignore[arg-type]


async def test_a_model_file_is_read_as_a_model(tmp_path: Path) -> None:
    model = (await tuned(paper())).model
    file = tmp_path / "orders.model.json"

    model.save(file)
    loaded = PrefetchModel.load(file)

    assert (loaded.a, loaded.b, loaded.high) == (model.a, model.b, model.high)
    assert type(model).load(file) == model


def test_informational_fields_of_a_model_are_known_to_its_reader() -> None:
    beyond = set(TunedModel.__struct_fields__) - set(PrefetchModel.__struct_fields__)

    assert beyond == INFORMATIONAL_FIELDS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"a": 0.2, "b": 60, "version": 2}', "of version 2, and this Tidegate reads 1"),
        ('{"a": 0.2, "b": 60, "r2_tset": 0.9}', "no field 'r2_tset', did you mean r2_test"),
        ('{"a": 0.2, "b": 1e308}', "worth 1.25e\\+308 msg/s"),
        ('{"a": 0.2, "b": 1e-300}', "worth 1.25e-300 msg/s"),
        ('{"a": 0.2, "b": 60, "r2_test": 0.1}', "explains 10% of held-out data, and 80%"),
        ('{"a": 0.2, "b": 60, "low": 9, "high": 3}', "from prefetch 9 to 3"),
        ('{"a": 0.2, "b": 60, "sample_s": 1e9}', "a day at most"),
    ],
)
def test_a_model_file_that_cannot_be_steered_by_is_refused(
    tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)

    with pytest.raises(InvalidValue, match=says):
        PrefetchModel.load(file)


def test_a_model_of_something_else_is_doubted() -> None:
    model = PrefetchModel(a=0.2, b=60.0, queue="refunds", engine="rabbitmq")

    assert "measured on queue refunds" in model.doubts("orders", "rabbitmq")
    assert "measured on rabbitmq" in model.doubts("refunds", "tidegate")
    assert not model.doubts("refunds", "rabbitmq")
    assert not PrefetchModel(a=0.2, b=60.0).doubts("orders", "tidegate")


def test_a_model_by_which_no_prefetch_is_slow_enough_is_refused_with_its_target() -> None:
    model = PrefetchModel(a=0.0, b=5000.0)
    PrefetchGoal(rate_per_s=4000.0, model=model).check()
    with pytest.raises(InvalidValue, match="none gives as little as 400"):
        PrefetchGoal(rate_per_s=400.0, model=model).check()


@pytest.mark.parametrize("content", ["", "{}", '{"a": 1}', '{"a": null, "b": 2}', "[]"])
def test_a_file_that_is_no_model_says_so(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)

    with pytest.raises(InvalidValue, match="no model file"):
        PrefetchModel.load(file)
