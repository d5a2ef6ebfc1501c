"""The bar of logical queues is about a bound that says how sure it is."""

from __future__ import annotations

import pytest

from tidegate_lab.bench.queue import PAIRS_MIN, build_alias_report


def test_the_bar_is_about_the_lower_bound_of_the_ratio() -> None:
    even = build_alias_report([(99.0, 100.0), (101.0, 100.0)] * PAIRS_MIN, 1000, 0.0)
    noisy = build_alias_report([(70.0, 100.0), (130.0, 100.0)] * (PAIRS_MIN // 2), 1000, 0.0)
    slow = build_alias_report([(90.0, 100.0), (91.0, 100.0)] * PAIRS_MIN, 1000, 0.0)
    few = build_alias_report([(100.0, 100.0)] * 2, 1000, 0.0)

    assert even.met
    assert noisy.ratio.mean == pytest.approx(1.0)
    assert [noisy.met, slow.met, few.met] == [False, False, False]
    assert few.bars[0].figure is None
