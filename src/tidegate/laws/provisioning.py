"""How many machines to keep warm, so that growth never waits for a boot.

    NPP = ceil(sla_delta · boot_s / machine_capacity)

`sla_delta` is the largest growth of the production rate that lasted (msg/s²), `boot_s` how long a
machine takes to boot, `machine_capacity` the msg/s of a machine with all its slots filled. The
paper's numbers: ceil(4 · 96.9 / 200) = 2. A mean boot time is too short half of the time, so the
95th percentile is taken as soon as there are enough boots to know it.

The growth is the slope of the least-squares line through `sustained_s` seconds of rates: a staircase
(100 msg/s each 25 s) counts as the ramp that it is, a single spike counts little, and a slope that
noise alone would give counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def warm_machines(sla_delta: float, boot_s: float, machine_capacity_per_s: float) -> int:
    """NPP: how many booted machines to keep without work."""
    raise NotImplementedError


def boot_time_s(boots_s: Sequence[float]) -> tuple[float, str]:
    """The boot time to reckon with, and which one it is: `mean` or `p95`."""
    raise NotImplementedError


def sla_delta(rate_per_s: NDArray[np.float64], step_s: float, sustained_s: float = 60.0) -> float:
    """The largest sustained growth (msg/s²) of evenly spaced rates; NaN where none was recorded."""
    raise NotImplementedError
