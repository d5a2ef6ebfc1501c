"""A rank: where a message stands in an order.

Its priority (highest first) if that counts, then its id.
"""

from __future__ import annotations

Rank = tuple[int, int]

# Before all ranks, and behind them.
NOTHING: Rank = (-(1 << 62), 0)
EVERYTHING: Rank = (1 << 62, 0)
