"""How many machines to keep warm, so that growth never waits for a boot.

    NPP = ceil(sla_delta · boot_s / machine_capacity)

`sla_delta` is the largest growth of the production rate that lasted (msg/s²), `boot_s` how long a
machine takes to boot, `machine_capacity` the msg/s of a machine with all its slots filled. The
paper's numbers: ceil(4 · 96.9 / 200) = 2.
"""

from __future__ import annotations

import math

ROUNDING = 1e-9


def warm_machines(sla_delta: float, boot_s: float, machine_capacity_per_s: float) -> int:
    """NPP: how many booted machines to keep without work."""
    if not machine_capacity_per_s > 0.0:
        raise ValueError(f"a machine's capacity is above 0 msg/s, not {machine_capacity_per_s}")
    if not (math.isfinite(sla_delta) and math.isfinite(boot_s) and boot_s >= 0.0):
        raise ValueError(f"growth {sla_delta} and boot time {boot_s} must be known numbers")
    # A load that only ever falls needs no machine to be ready.
    machines = sla_delta * boot_s / machine_capacity_per_s
    # 1.1 · 100 / 110 is one machine, and 1.0000000000000002 to a computer.
    return max(math.ceil(machines * (1.0 - ROUNDING)), 0)
