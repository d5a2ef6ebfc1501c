"""A sentence about others who used the machine meanwhile."""

from __future__ import annotations

from tidegate.lab.bench.processors import QUIET


def disturbance(taken_by_others: float) -> list[str]:
    """None when it was quiet."""
    if taken_by_others <= QUIET:
        return []
    return [
        f"Other processes took {100 * taken_by_others:.0f} % of the machine meanwhile: rates are "
        "lower than they could be, and differences may be theirs."
    ]
