"""The availability index: how available each server is, in percent of all (TAPAS §2.2.3).

    index_i = mean of  100·(1/RT_i)/Σ(1/RT_j),  100·TP_i/ΣTP_j,  100·Mem_i/ΣMem_j

The paper divides RT_i by ΣRT, which is not a share, and its text says median where its formula is
the mean. The indexes add up to 100.

A factor that was measured for some servers only takes the mean of the measured ones for the rest. A
server without any measurement therefore gets an average index and is neither avoided nor flooded
with requests. If nothing was measured, every server gets an even share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSample:
    """Measurements of one server. `None` means not measured."""

    response_time_s: float | None = None
    throughput_per_s: float | None = None
    free_memory_bytes: float | None = None


# Smaller response times do not differ, and 0 from a coarse clock must not be divided by.
_RESPONSE_TIME_S_LEAST = 1e-6


def availability_index(samples: Mapping[str, ServerSample]) -> dict[str, float]:
    """Return the index of every server by name. The indexes are above 0 and add up to 100."""
    if not samples:
        return {}
    even = 100.0 / len(samples)
    factors = [
        _shares(
            {
                name: None
                if one.response_time_s is None
                # A coarse clock may measure 0.
                else 1.0 / max(one.response_time_s, _RESPONSE_TIME_S_LEAST)
                for name, one in samples.items()
            }
        ),
        _shares({name: one.throughput_per_s for name, one in samples.items()}),
        _shares({name: one.free_memory_bytes for name, one in samples.items()}),
    ]
    known = [factor for factor in factors if factor is not None]
    if not known:
        return dict.fromkeys(samples, even)
    return {name: sum(factor[name] for factor in known) / len(known) for name in samples}


def _shares(values: Mapping[str, float | None]) -> dict[str, float] | None:
    """Return each server's part in percent, or `None` if none is measured.

    Unmeasured servers get the mean of the measured ones.
    """
    measured = [value for value in values.values() if value is not None and value >= 0.0]
    total = sum(measured)
    if not total > 0.0 or total == float("inf"):
        return None
    mean = total / len(measured)
    filled = {
        name: value if value is not None and value >= 0.0 else mean
        for name, value in values.items()
    }
    whole = sum(filled.values())
    return {name: 100.0 * value / whole for name, value in filled.items()}
