"""The ramp of the elastic queues paper runs through on real machines, at its smallest."""

from __future__ import annotations

from pathlib import Path

from tidegate_lab.papers.elastic.run import RealPlan, real_section


def test_a_second_worker_comes_on_the_same_machine_when_the_ramp_needs_it(tmp_path: Path) -> None:
    section = real_section(RealPlan.quick(), tmp_path, lambda line: None)

    run = section.data["runs"]["figure 5"]
    assert run["workers_max"] >= 2
    assert run["confirmed"] > 0
    assert {moment["ideal"] for moment in run["moments"]} == {1, 2, 3}
    assert section.data["time_scale"]["slow"] == 60.0
    assert any("Time runs 60 times" in note for note in section.notes)
    assert (tmp_path / "ramps-figure-5.png").stat().st_size > 5000
