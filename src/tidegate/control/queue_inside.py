"""At a warning, first what can be done inside: the prefetch of a queue's consumers.

    nobody steers it, consumers are full, messages wait     steer it: keep up with the handlers
    it keeps up already                                     nothing is left inside
    a person has set a rate or a number                     that stays, and is said
    nobody consumes, or consumers have credit left          prefetch is not what is missing

What remains is the number of replicas, which the law has ordered by then: it looks further ahead
than a window does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.adapters.native.looks import ConsumerLook
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.prefetch_words import told
from tidegate.core.steering import KeepUp


class Inside(NamedTuple):
    """What is done inside, if anything, and a sentence about it."""

    action: KeepUp | None
    said: str


def adapted_inside(
    goal: PrefetchGoal | None, consumers: Sequence[ConsumerLook], waiting: int
) -> Inside:
    """What the prefetch can do about a warning."""
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
