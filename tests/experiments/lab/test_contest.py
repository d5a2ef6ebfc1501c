"""The contest of scaling policies on few traces, with a process on each core."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tidegate_lab.papers.elastic import contest
from tidegate_lab.papers.elastic.simulated import SimulatedOptions, run_simulated


def test_the_page_says_which_seeds_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To tune is another test's.
    for name in ("load_grid", "length_grid", "feed_forward_grid"):
        one = getattr(contest, name)()[:1]
        monkeypatch.setattr(contest, name, partial(list, one))
    options = SimulatedOptions(
        only=["traces"], traces=20, seed=90_000, results=tmp_path, name="other"
    )
    report = run_simulated(options)
    assert report.sections[0].data["first_seed"] == {"tuning": 30_000, "unseen": 90_000}
    assert "others, with seeds from 90000 on" in report.page.read_text()
