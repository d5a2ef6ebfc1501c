"""The ramp of the elastic queues paper: its load, its judgement, its bars and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.core.topology import ScalingPolicy
from tidegate_lab.papers.elastic.ramp_process import Ramp
from tidegate_lab.papers.elastic.run import (
    SETUPS,
    RealPlan,
    RealRun,
    RealSample,
    bars_of,
    judged,
    real_section,
    section_of,
)
from tidegate_lab.report import ExperimentFailed


def test_a_ramp_says_how_many_messages_are_due() -> None:
    ramp = Ramp("", "orders", growth_per_s2=10.0, rate_max_per_s=50.0, seconds=10.0)

    # 0.5 · 10 · t² until 5 s, then 50 a second.
    assert [ramp.due(at_s) for at_s in (0.0, 2.0, 5.0, 7.0)] == [0, 20, 125, 225]
    assert [ramp.rate_per_s(at_s) for at_s in (2.0, 5.0, 7.0)] == [20.0, 50.0, 50.0]


def seen(at_s: float, load: float, workers: int, machines: int) -> RealSample:
    return RealSample(at_s, 0.0, load, 0, workers, machines, booting=0, ideal=1)


def test_late_is_what_a_machine_has_to_be_waited_for() -> None:
    two_slots = SETUPS[1]
    run = judged(
        two_slots,
        10.0,
        [
            seen(10.0, 150.0, workers=1, machines=1),
            seen(20.0, 300.0, workers=1, machines=1),  # a slot is free: one starts
            seen(30.0, 250.0, workers=2, machines=1),  # none is
            seen(50.0, 900.0, workers=2, machines=1),
            seen(60.0, 800.0, workers=2, machines=2),
            seen(70.0, 100.0, workers=3, machines=2),
        ],
        confirmed=1,
        boots=[9.0, 11.0],
    )

    assert (run.peak_load, run.above_s, run.late_s) == (900.0, 50.0, 30.0)
    assert run.workers_when_late == 2
    assert run.boot_s_mean == 100.0


@pytest.mark.parametrize("plan", [RealPlan(), RealPlan.full(), RealPlan.quick()])
def test_every_setup_needs_a_machine_that_is_not_there_when_it_begins(plan: RealPlan) -> None:
    plan.check()

    assert plan.chosen
    for setup in plan.chosen:
        assert plan.workers_needed(setup) > setup.slots_at_start


def test_a_setup_that_could_not_fail_is_refused(tmp_path: Path) -> None:
    # One machine up and two warm have six slots, and 500 msg/s need five workers.
    plan = RealPlan(fast_rate_max_per_s=500.0, setups=("figure 8",))

    with pytest.raises(ExperimentFailed, match=r"figure 8 cannot fail: .* 6 slots.* 5 workers"):
        real_section(plan, tmp_path, lambda line: None)


def ran(name: str, policy: ScalingPolicy, *moments: RealSample) -> RealRun:
    setup = next(one for one in SETUPS if one.name == name)
    return judged(setup, 4.0, list(moments), confirmed=1, boots=[], policy=policy)


def test_the_issues_bar_is_about_every_second_above_and_about_both_policies() -> None:
    # A slot is free: above max_load, and not late.
    above = seen(10.0, 300.0, workers=1, machines=3)
    runs = [
        ran("figure 8", ScalingPolicy.LOAD, above, seen(20.0, 0.0, workers=2, machines=3)),
        ran("figure 8", ScalingPolicy.FEED_FORWARD, seen(20.0, 0.0, workers=2, machines=3)),
    ]

    load, ours, late = bars_of({run.name: run for run in runs})

    assert (load.figure, load.verdict, load.beyond_the_issue) == (10.0, "not met", False)
    assert (ours.figure, ours.verdict, ours.beyond_the_issue) == (0.0, "met", False)
    assert "feed-forward" in ours.bar
    assert (late.figure, late.verdict, late.beyond_the_issue) == (0.0, "met", True)


@pytest.mark.parametrize(("workers", "away"), [(4, 0.0), (3, 1.0), (None, 5.0)])
def test_in_figure_7_the_fifth_worker_is_to_be_the_one_that_is_waited_for(
    workers: int | None, away: float
) -> None:
    moment = seen(10.0, 0.0, 4, 2) if workers is None else seen(10.0, 300.0, workers, workers // 2)
    run = ran("figure 7", ScalingPolicy.LOAD, moment)

    fifth, late = bars_of({run.name: run})

    assert (fifth.figure, fifth.met) == (away, away == 0.0)
    assert late.beyond_the_issue


def test_both_policies_are_drawn_and_stand_in_rows_of_their_own(tmp_path: Path) -> None:
    moments = (seen(10.0, 0.0, 1, 3), seen(20.0, 100.0, 2, 3))
    runs = [ran("figure 8", policy, *moments) for policy in SETUPS[4].policies]

    section = section_of({run.name: run for run in runs}, RealPlan(), 0.0, tmp_path)

    assert [(row[0], row[2], row[8]) for row in section.tables[0].rows] == [
        ("figure 8", "load (the paper's)", "6"),
        ("figure 8", "feed-forward", "6"),
    ]
    assert [drawing.file for drawing in section.drawings] == [
        "ramps-figure-8.png",
        "ramps-figure-8-feed-forward.png",
    ]
    assert all((tmp_path / drawing.file).stat().st_size > 5000 for drawing in section.drawings)
