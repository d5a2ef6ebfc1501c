"""The warm pool: the number of machines to keep warm, so that growth never waits for a boot.

    NPP = ceil(sla_delta · boot_s / machine_capacity)

`sla_delta` is the largest sustained growth of the production rate (msg/s²). `boot_s` is the boot
time of a machine. `machine_capacity` is the msg/s of a machine with all its slots filled. The
paper's check value is ceil(4 · 96.9 / 200) = 2.
"""

from __future__ import annotations

import math

ROUNDING = 1e-9


def warm_machines(sla_delta: float, boot_s: float, machine_capacity_per_s: float) -> int:
    """Return NPP, the number of booted machines to keep without work."""
    if not machine_capacity_per_s > 0.0:
        raise ValueError(f"a machine's capacity is above 0 msg/s, not {machine_capacity_per_s}")
    if not (math.isfinite(sla_delta) and math.isfinite(boot_s) and boot_s >= 0.0):
        raise ValueError(f"growth {sla_delta} and boot time {boot_s} must be known numbers")
    # A falling load has a negative growth and needs no warm machine.
    machines = sla_delta * boot_s / machine_capacity_per_s
    # Without rounding, 1.1 · 100 / 110 is 1.0000000000000002 and would need two machines.
    return max(math.ceil(machines * (1.0 - ROUNDING)), 0)
