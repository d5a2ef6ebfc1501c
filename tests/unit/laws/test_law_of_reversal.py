"""The reversal guard: harm is harm only beyond noise and at comparable demand."""

from __future__ import annotations

import random

from tidegate.laws.scaling import HarmfulScaleUp, ReversalGuard, ReversalSettings

CAUTION = ReversalSettings(settle_s=2.0, remembered_s=100.0)


def watch(
    before: float, after: float, *, arrived_after: float = 300.0, waiting_after: float = 500.0
) -> tuple[ReversalGuard, list[HarmfulScaleUp]]:
    guard = ReversalGuard(CAUTION)
    noise = random.Random(2)
    verdicts = []
    for at in range(40):
        grown = at >= 20
        verdict = guard.observe(
            at,
            4 if grown else 3,
            noise.gauss(after if grown else before, 3.0),
            arrived_after if grown else 300.0,
            waiting_after if grown else 400.0,
        )
        if verdict:
            verdicts.append(verdict)
    return guard, verdicts


def test_a_scale_up_that_lowered_throughput_is_found_once() -> None:
    guard, verdicts = watch(300.0, 240.0)
    assert [(one.fewer, one.more) for one in verdicts] == [(3, 4)]
    assert guard.ceiling(50.0) == verdicts[0]
    assert guard.ceiling(verdicts[0].until) is None


def test_a_small_difference_is_noise() -> None:
    assert watch(300.0, 292.0)[1] == []


def test_less_throughput_because_less_arrives_is_no_harm() -> None:
    assert watch(300.0, 240.0, arrived_after=240.0)[1] == []


def test_less_throughput_because_the_backlog_is_gone_is_no_harm() -> None:
    assert watch(400.0, 300.0, waiting_after=0.0)[1] == []


def test_two_scale_ups_in_a_row_are_judged_together() -> None:
    guard = ReversalGuard(CAUTION)
    verdict = None
    for at in range(60):
        count = 3 if at < 20 else 4 if at < 22 else 5
        verdict = verdict or guard.observe(at, count, 300.0 if count == 3 else 200.0, 300.0, 500.0)
    assert verdict is not None
    assert (verdict.fewer, verdict.more) == (3, 5)
