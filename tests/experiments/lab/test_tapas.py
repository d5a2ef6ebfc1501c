"""Each part of the TAPAS experiments in small: that everything works, not what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from missing_peer import skipped_where_missing
from whole_page import drawn

from tidegate_lab.papers.tapas.keeping import keeping_section
from tidegate_lab.papers.tapas.overhead import DOOR_KINDS, overhead_section, whole_section
from tidegate_lab.papers.tapas.shops import (
    AgreementPlan,
    Case,
    OverheadPlan,
    PairCase,
    PairLength,
    ShopSetting,
    SkewPlan,
    WholePlan,
)
from tidegate_lab.papers.tapas.skew import skew_section


def test_door_cost_is_measured_in_turn_and_in_pairs(tmp_path: Path) -> None:
    plan = OverheadPlan(
        clients=(3,),
        instances=(1,),
        seconds=0.3,
        warm_s=0.1,
        paired=(PairCase(3, (1,), 0.005),),
        length=PairLength(pairs=2, seconds=0.3, warm_s=0.1),
    )
    with skipped_where_missing():
        section = drawn(overhead_section(plan, tmp_path, lambda line: None), tmp_path)
    assert [len(one["response"]) for one in section.data["pairs"]] == [2]
    ways = section.data["passages"]["3"]["1"]
    assert set(ways) == set(DOOR_KINDS)
    assert all(one["requests"] > 5 for one in ways.values()), "every way leads to the shop"
    (failed,) = [bar for bar in section.bars if bar.bar == "requests failed"]
    assert failed.met


def test_all_of_hosting_is_measured_beside_plain_haproxy(tmp_path: Path) -> None:
    plan = WholePlan(
        paired=(PairCase(3, (1,), 0.005),), length=PairLength(pairs=1, seconds=0.5, warm_s=0.1)
    )
    section = drawn(whole_section(plan, tmp_path, lambda line: None), tmp_path)
    (pairs,) = section.data["pairs"]
    assert (len(pairs["response"]), pairs["ours_failed"], pairs["plain_failed"]) == (1, 0, 0)
    assert pairs["response"][0] > 0, "both lead to the shop"
    bars = {bar.bar.split(",")[0]: bar for bar in section.bars}
    assert bars.keys() == {"response", "throughput", "requests failed"}
    assert bars["requests failed"].met


def test_a_dead_and_a_silent_instance_are_left_and_a_slow_one_gets_less(tmp_path: Path) -> None:
    plan = SkewPlan(
        instances=3,
        clients=6,
        shop=ShopSetting(concurrency=2, service_s=0.03),
        policies=("better-of-two",),
        calm_s=1.0,
        after_s=5.0,
        answer_timeout_s=1.0,
        client_timeout_s=5.0,
    )
    section = drawn(skew_section(plan, tmp_path, lambda line: None), tmp_path)
    trials = {one["fault"]: one for one in section.data["trials"]}
    assert trials["three times slower"]["failed"] == 0
    # What had been sent and may not be sent again: never more than it had in hand.
    assert trials["dies"]["failed"] <= 6
    assert trials["hangs"]["failed"] <= 6
    # More than the clients had in hand when it happened.
    assert all(one["requests"] > 6 for one in trials.values())


@pytest.mark.timeout(300)
def test_static_and_ours_have_the_same_clients_and_are_judged_alike(tmp_path: Path) -> None:
    plan = AgreementPlan(cases=(Case(1, 2, "figure 21"),), ramp_s=0.5, hold_s=4.0)
    with skipped_where_missing():
        section = drawn(keeping_section(plan, tmp_path, lambda line: None), tmp_path)
    (outcome,) = section.data["outcomes"]
    assert outcome["static"]["failed"] == outcome["ours"]["failed"] == 0
    assert len(outcome["ours"]["windows"]) == 1
    assert outcome["instance_s"] == pytest.approx(outcome["oracle_s"], rel=0.3)
