"""The ramp of the elastic queues paper runs through on real machines, at its smallest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.lab.elastic.ramp_process import Ramp
from tidegate.lab.elastic.real import SETUPS, Moment, RealPlan, judged, real_section


def test_a_ramp_says_how_many_messages_are_due() -> None:
    ramp = Ramp("", "orders", growth_per_s2=10.0, rate_max_per_s=50.0, seconds=10.0)

    # 0.5 · 10 · t² until 5 s, then 50 a second.
    assert [ramp.due(at_s) for at_s in (0.0, 2.0, 5.0, 7.0)] == [0, 20, 125, 225]
    assert [ramp.rate_per_s(at_s) for at_s in (2.0, 5.0, 7.0)] == [20.0, 50.0, 50.0]


def seen(at_s: float, load: float, workers: int, machines: int) -> Moment:
    return Moment(at_s, 0.0, load, 0, workers, machines, booting=0, ideal=1)


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


@pytest.mark.slow
def test_a_second_worker_comes_on_the_same_machine_when_the_ramp_needs_it(tmp_path: Path) -> None:
    section = real_section(RealPlan.quick(), tmp_path, lambda line: None)

    run = section.data["runs"]["figure 5"]
    assert run["workers_max"] >= 2
    assert run["confirmed"] > 0
    assert {moment["ideal"] for moment in run["moments"]} == {1, 2}
    assert section.data["time_scale"]["slow"] == 60.0
    assert any("Time runs 60 times" in note for note in section.notes)
    assert (tmp_path / "ramps-figure-5.png").stat().st_size > 5000
