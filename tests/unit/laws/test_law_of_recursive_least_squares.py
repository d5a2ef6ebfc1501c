"""A model that is learned while steering, and gains that follow it when that helps."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plant import PAPER_A, PAPER_B
from steered_plant import SteeredPlant
from thoroughness import examples

from tidegate.core.reasons import Reason
from tidegate.laws.prefetch.controller import Clamp, Dither, make_controller
from tidegate.laws.prefetch.design import ControllerType, Requirement, place_poles
from tidegate.laws.prefetch.fit import PRECISE, LinearModel, NoExcitation, RecursiveLeastSquares
from tidegate.laws.prefetch.knee import CALM_SAMPLES, GainReduction
from tidegate.laws.prefetch.model import AdaptiveLayer

PAPER = LinearModel(PAPER_A, PAPER_B, 0.0)
REQUIREMENT = Requirement(20)


def covariance_form(observed: list[tuple[float, float, float]], keep: float) -> tuple[float, float]:
    """The textbook's recursion, with an offset as third unknown, and hardly any prior."""
    theta, covariance = np.zeros(3), np.eye(3) * 1e6
    rate, prefetch, _ = observed[0]
    for y, u, y_next in observed:
        phi = np.array([y - rate, u - prefetch, 1.0])
        gain = covariance @ phi / (keep + phi @ covariance @ phi)
        theta = theta + gain * (y_next - rate - phi @ theta)
        covariance = (covariance - np.outer(gain, phi @ covariance)) / keep
        # Rounding would make it lopsided.
        covariance = (covariance + covariance.T) / 2.0
    return float(theta[0]), float(theta[1])


def moved(
    model: LinearModel, count: int, noise: float, seed: int = 1, rate: float = 400.0
) -> list[tuple[float, float, float]]:
    """Samples of a plant whose prefetch jumps about."""
    dice = random.Random(seed)
    observed = []
    for _ in range(count):
        prefetch = dice.uniform(1.0, 15.0)
        after = model.a * rate + model.b * prefetch + model.offset_per_s + dice.gauss(0.0, noise)
        observed.append((rate, prefetch, after))
        rate = after
    return observed


@settings(max_examples=examples(30), deadline=None)
@given(st.floats(-0.8, 0.9), st.floats(1.0, 100.0), st.floats(0.1, 10.0), st.integers(0, 1000))
def test_recursive_least_squares_equals_the_textbook_form(
    a: float, b: float, noise: float, seed: int
) -> None:
    observed = moved(LinearModel(a, b, 30.0), 120, noise, seed, rate=100.0)
    learner = RecursiveLeastSquares(PAPER, memory_samples=50.0, moved_min=0.0)
    for one in observed:
        learner.observe(*one)

    # Unless it took chance for another plant.
    assume(learner.forgotten == 0)
    theirs = covariance_form(observed, keep=1.0 - 1.0 / 50.0)

    assert (learner.model.a, learner.model.b) == pytest.approx(theirs, rel=1e-3, abs=1e-3)


def test_a_known_plant_is_learned_with_its_offset() -> None:
    plant = LinearModel(0.4, 30.0, 120.0)
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(plant, 300, noise=0.0):
        learner.observe(*one)

    assert learner.model.a == pytest.approx(0.4)
    assert learner.model.b == pytest.approx(30.0)
    assert learner.model.offset_per_s == pytest.approx(120.0)


def test_recursive_estimate_follows_a_changed_plant() -> None:
    learner = RecursiveLeastSquares(PAPER, memory_samples=40.0)
    for one in moved(PAPER, 400, noise=5.0):
        learner.observe(*one)
    for one in moved(LinearModel(0.5, 25.0, 0.0), 400, noise=5.0):
        learner.observe(*one)

    assert learner.model.a == pytest.approx(0.5, abs=0.05)
    assert learner.model.b == pytest.approx(25.0, rel=0.05)


def test_a_prefetch_that_stands_still_freezes_the_model() -> None:
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(PAPER, 200, noise=5.0):
        learner.observe(*one)
    learned = learner.model

    # Far from where it was before, for 50 times its memory.
    dice = random.Random(2)
    rates = [PAPER_B * 20.0 / (1.0 - PAPER_A)]
    for _ in range(5000):
        rates.append(PAPER_A * rates[-1] + PAPER_B * 20.0 + dice.gauss(0.0, 5.0))
    learned_from = [learner.observe(y, 20.0, after) for y, after in pairwise(rates)]

    assert learner.is_frozen
    assert sum(learned_from) < 10
    assert learner.model.b == pytest.approx(learned.b, rel=0.1)


def test_without_excitation_there_is_no_model() -> None:
    learner = RecursiveLeastSquares(PAPER)
    for _ in range(100):
        learner.observe(400.0, 5.0, 400.0)

    with pytest.raises(NoExcitation):
        _ = learner.model
    assert not learner.drift().is_better


def test_measurements_that_are_no_numbers_are_not_learned_from() -> None:
    learner = RecursiveLeastSquares(PAPER)

    assert not learner.observe(float("nan"), 5.0, 400.0)
    assert learner.samples == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_no_drift(seed: int) -> None:
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(PAPER, 1000, noise=40.0, seed=seed):
        learner.observe(*one)
        assert not learner.drift().is_better, learner.drift().reason


def test_a_shifted_rate_is_no_drift() -> None:
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(LinearModel(PAPER_A, PAPER_B, -150.0), 500, noise=10.0):
        learner.observe(*one)

    assert not learner.drift().is_better


def test_a_round_trip_that_doubled_is_a_drift() -> None:
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(LinearModel(PAPER_A, PAPER_B / 2.0, 0.0), 300, noise=20.0):
        learner.observe(*one)

    found = learner.drift()

    assert found.is_better, found.reason
    assert found.model is not None
    assert found.model.b == pytest.approx(PAPER_B / 2.0, rel=0.1)


# The model in use, found again


def test_a_model_that_is_found_again_with_precision_is_confirmed() -> None:
    learner = RecursiveLeastSquares(PAPER)
    for one in moved(PAPER, 300, noise=5.0):
        learner.observe(*one)

    found = learner.drift()

    assert found.is_confirmed, found.reason
    assert not found.is_better


def test_drift_is_not_confirmed_by_few_or_noisy_samples() -> None:
    for plant, count, noise in (
        (PAPER, 20, 5.0),
        # As uncertain as this, it may be any plant.
        (PAPER, 40, 60.0 / PRECISE),
        (LinearModel(PAPER_A, PAPER_B / 2.0, 0.0), 300, 5.0),
    ):
        learner = RecursiveLeastSquares(PAPER)
        for one in moved(plant, count, noise):
            learner.observe(*one)
        assert not learner.drift().is_confirmed, (count, noise)


def test_gains_that_a_swing_has_cost_are_given_back_when_the_model_is_confirmed() -> None:
    tunable = make_controller(place_poles(PAPER, ControllerType.PI, REQUIREMENT).gains, 5.0)
    designed = tunable.gains
    calmed = GainReduction(Clamp(Dither(tunable, 0.5), 1, 60), tunable)
    steering = AdaptiveLayer(calmed, calmed, PAPER, REQUIREMENT)
    dice = random.Random(3)
    plant = SteeredPlant(PAPER_A, PAPER_B, 5.0, noise=lambda _: dice.gauss(0.0, 3.0))

    def run(target: float, samples: int) -> None:
        for _ in range(samples):
            plant.run(steering, target, 1)
            # As whoever steers a consumer says it.
            steering.is_doubted = calmed.is_lowered

    # For a while another plant, of which nothing is learned.
    plant.b, steering.is_learning = 5.0 * PAPER_B, False
    run(2000.0, 60)
    assert any(step.has_note(Reason.GAINS_HALVED) for step in plant.steps)
    assert calmed.is_lowered
    plant.b, steering.is_learning = PAPER_B, True
    swung = len(plant.steps)

    # As much has just swung: that the model holds is no reason yet.
    for target in (2200.0, 2000.0):
        run(target, 30)
    assert calmed.is_lowered
    for target in (2200.0, 2000.0) * 3:
        run(target, CALM_SAMPLES // 3)

    assert not calmed.is_lowered
    assert tunable.gains == designed
    assert steering.model is PAPER
    notes = [note for step in plant.steps[swung:] for note in map(str, step.notes)]
    assert sum("cannot be told from the model in use; again" in note for note in notes) == 1


def adaptive(amplitude: float) -> AdaptiveLayer:
    tunable = make_controller(place_poles(PAPER, ControllerType.PI, REQUIREMENT).gains, 5.0)
    return AdaptiveLayer(Clamp(Dither(tunable, amplitude), 1, 60), tunable, PAPER, REQUIREMENT)


def test_a_loop_whose_plant_changed_is_redesigned_and_says_so() -> None:
    steering = adaptive(amplitude=0.5)
    dice = random.Random(3)
    plant = SteeredPlant(PAPER_A, PAPER_B, 5.0, noise=lambda _: dice.gauss(0.0, 3.0))
    for target in (400.0, 500.0) * 4:
        plant.run(steering, target, 40)
    assert steering.model is PAPER

    # Three times the answer to each unit of prefetch: the old gains are three times too high.
    plant.b *= 3.0
    for target in (400.0, 500.0) * 6:
        plant.run(steering, target, 40)

    notes = [
        note for step in plant.steps for note in map(str, step.notes) if "redesigned: " in note
    ]
    assert notes
    assert steering.model.b == pytest.approx(3.0 * PAPER_B, rel=0.15)
    assert steering.model.a == pytest.approx(PAPER_A, abs=0.1)


def test_two_plants_are_not_averaged() -> None:
    # Steered to the same rate before and after, a line through both would be flat.
    learner = RecursiveLeastSquares(PAPER)
    dice = random.Random(5)
    for factor in (1.0, 3.0):
        rate = 400.0
        for _ in range(100):
            prefetch = 4.935 / factor + dice.choice([-0.5, 0.5])
            after = PAPER_A * rate + factor * PAPER_B * prefetch + dice.gauss(0.0, 3.0)
            learner.observe(rate, prefetch, after)
            rate = after

    assert learner.forgotten == 1
    assert learner.model.b == pytest.approx(3.0 * PAPER_B, rel=0.1)


def test_a_loop_whose_plant_stays_is_never_redesigned() -> None:
    steering = adaptive(amplitude=0.5)
    dice = random.Random(4)
    plant = SteeredPlant(PAPER_A, PAPER_B, 5.0, noise=lambda _: dice.gauss(0.0, 3.0))

    for target in (400.0, 500.0) * 15:
        plant.run(steering, target, 40)

    assert steering.model is PAPER


def test_a_memory_too_short_to_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="tell a model from noise"):
        RecursiveLeastSquares(PAPER, memory_samples=10.0)
