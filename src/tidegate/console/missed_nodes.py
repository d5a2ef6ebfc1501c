"""Nodes that have answered recently and are silent now, without those that left gracefully.

A node that leaves removes itself from the list of members. A node that dies stays in the list until
its lease expires. So the list tells the two apart, if it is read soon after a node fell silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

# If a node is not in the list so soon after its last answer, it has left gracefully. Leases last 3
# s by default, and are renewed at a third of that.
LEAVES_S = 2.0
# How long a silent node is reported as missing.
MISSED_S = 120.0


class MissedNodes:
    """The time of each node's last answer."""

    def __init__(self) -> None:
        self._answered_at: dict[str, float] = {}

    def take(self, answered: Iterable[str], now: float) -> None:
        self._answered_at.update(dict.fromkeys(answered, now))
        self._answered_at = {
            name: at for name, at in self._answered_at.items() if now - at < MISSED_S
        }

    def is_to_ask(self, now: float) -> bool:
        """Return whether the list of members can still tell why a node is silent."""
        return any(0.0 < now - at <= LEAVES_S for at in self._answered_at.values())

    def listed(self, members: Collection[str], now: float) -> None:
        """Remove the nodes that have left, by the present list of members."""
        self._answered_at = {
            name: at
            for name, at in self._answered_at.items()
            if now - at > LEAVES_S or name in members
        }

    def names(self, now: float) -> list[str]:
        return sorted(name for name, at in self._answered_at.items() if at < now)
