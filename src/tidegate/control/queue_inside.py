"""Prefetch advice: at a warning, adapt the consumers' prefetch before adding replicas.

    no goal, consumers are full, messages wait      set a goal: keep up with the handlers
    the prefetch keeps up already                   nothing is left to adapt
    an override sets a rate or a number             it stays, and the text says so
    no consumers, or consumers with unused credit   the prefetch is not the bottleneck

In any case the law may order replicas in the same period: it looks further ahead than a window
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.adapters.native.looks import ConsumerLook
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.prefetch_words import told
from tidegate.core.steering import KeepUp


class Inside(NamedTuple):
    """An action on the prefetch, if any, and a sentence about it."""

    action: KeepUp | None
    said: str


def adapted_inside(
    goal: PrefetchGoal | None, consumers: Sequence[ConsumerLook], waiting: int
) -> Inside:
    """Return what the prefetch can do about a warning; the action is None if it can do nothing."""
    if not consumers:
        return Inside(None, "Nothing can be adapted inside: nobody consumes.")
    if goal is not None:
        if goal.manual is None and goal.rate_per_s is None:
            return Inside(None, "Nothing is left to adapt inside: the prefetch keeps up already.")
        return Inside(
            None, f"Nothing is adapted inside: a person has set the prefetch ({told(goal)})."
        )
    full = sum(one.unacknowledged >= one.prefetch for one in consumers)
    if not waiting or not full:
        return Inside(
            None, "Nothing can be adapted inside: consumers have credit for more than they get."
        )
    return Inside(
        KeepUp(),
        f"Inside first: {full} of {len(consumers)} consumers have all that their prefetch allows "
        f"while {waiting} messages wait, so it is steered to keep up with their handlers.",
    )
