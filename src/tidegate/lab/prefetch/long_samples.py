"""Figure 6 with samples as long as the paper's: PI control, ten times slower.

The model is that of the other experiments, whose samples have a tenth of the length.
`laws/prefetch_design.resampled` converts it to the longer samples.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.core.prefetch import ControllerKind
from tidegate.lab.prefetch.bench import Bench
from tidegate.lab.prefetch.closed_loop import (
    draw_held,
    hold,
    integral_bars,
)
from tidegate.lab.prefetch.plan import PAPER_CLOSED_LOOP
from tidegate.lab.report.section import Drawing, Section

TIMES = 10.0


def long_samples_section(bench: Bench, folder: Path) -> Section:
    """Run PI control only, because P and PID have no bar here."""
    plan = bench.plan
    sample_s, settle_s = TIMES * plan.sample_s, TIMES * plan.settle_s
    run = hold(bench, ControllerKind.PI, sample_s=sample_s, settle_s=settle_s)
    draw_held([run], plan.target_per_s, sample_s, settle_s, folder / "fig6.png")
    return Section(
        name="fig6",
        title=f"Figure 6: PI with samples of {sample_s:g} s",
        source="Section 3.4, figure 6",
        paper="{:.0f} ± {:.0f} msg/s.".format(*PAPER_CLOSED_LOOP[ControllerKind.PI]),
        ours=f"{run.spread} msg/s over {run.spread.samples} samples.",
        drawings=[
            Drawing(
                "fig6.png",
                "Sampled arrival rate from a start at prefetch 1; what is to the right of the "
                "settling time counts.",
            )
        ],
        bars=integral_bars(run, plan.target_per_s, sample_s, settle_s),
        data=msgspec.to_builtins(run),
    )
