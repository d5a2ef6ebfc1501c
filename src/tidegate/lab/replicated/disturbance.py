"""A note about other processes that used the machine during a measurement."""

from __future__ import annotations

from tidegate.lab.bench.processors import QUIET


def disturbance(taken_by_others: float) -> list[str]:
    """Return a note about the share that other processes took; empty if the machine was quiet."""
    if taken_by_others <= QUIET:
        return []
    return [
        f"Other processes took {100 * taken_by_others:.0f} % of the machine meanwhile: rates are "
        "lower than they could be, and differences may be theirs."
    ]
