"""A rank: the position of a message in an order, by priority (highest first) and then id.

The priority is 0 in an order that ignores it.
"""

from __future__ import annotations

Rank = tuple[int, int]

# Before all ranks, and after all ranks.
NOTHING: Rank = (-(1 << 62), 0)
EVERYTHING: Rank = (1 << 62, 0)
