"""Nodes that answered a while ago and do not now, without those that have left in good order.

Who leaves takes itself off the list of members; who dies stays on it until its lease has lapsed. So
the list, asked soon after a node fell silent, tells one from the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

# For so long after its last answer an absence from the list means that a node has left by itself.
# Leases are 3 s by default, and renewed at a third of that.
LEAVES_S = 2.0
# How long a node is missed.
MISSED_S = 120.0


class MissedNodes:
    """When each node has answered last."""

    def __init__(self) -> None:
        self._answered_at: dict[str, float] = {}

    def take(self, answered: Iterable[str], now: float) -> None:
        self._answered_at.update(dict.fromkeys(answered, now))
        self._answered_at = {
            name: at for name, at in self._answered_at.items() if now - at < MISSED_S
        }

    def is_to_ask(self, now: float) -> bool:
        """Whether the list of members can tell why somebody is silent."""
        return any(0.0 < now - at <= LEAVES_S for at in self._answered_at.values())

    def listed(self, members: Collection[str], now: float) -> None:
        """Forget those that have left."""
        self._answered_at = {
            name: at
            for name, at in self._answered_at.items()
            if now - at > LEAVES_S or name in members
        }

    def names(self, now: float) -> list[str]:
        return sorted(name for name, at in self._answered_at.items() if at < now)
