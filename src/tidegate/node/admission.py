"""Limits on connections: in all, unauthenticated, per address and per user.

A connection is unauthenticated until its client has identified itself. Unauthenticated connections
get at most half of all slots. Clients can therefore always connect, even if many sockets are opened
and never used. Connections of other nodes carry many users from one address, so only the limit in
all applies to them.
"""

from __future__ import annotations

from collections import Counter

from tidegate.core.errors import LimitReached
from tidegate.node.limits import Limits


class Place:
    """The counts that one connection is part of."""

    __slots__ = ("address", "is_stranger", "user")

    def __init__(self, address: str) -> None:
        # None: the connection does not count for its address.
        self.address: str | None = address
        self.user: str | None = None
        self.is_stranger = True


class Admission:
    """Counts the connections of a node against its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self.connections = 0
        self.strangers = 0

    def arrive(self, address: str) -> Place:
        """Reserve a slot for a new connection.

        Raises `LimitReached` if a limit is reached.
        """
        limits = self._limits
        if self.connections >= limits.connections_max:
            raise LimitReached(f"{self.connections} connections are open")
        if self.strangers >= max(limits.connections_max // 2, 1):
            raise LimitReached(f"{self.strangers} connections have not said who they are")
        if self._addresses[address] >= limits.connections_per_address_max:
            raise LimitReached(f"{self._addresses[address]} connections of {address} are open")
        self._addresses[address] += 1
        self.connections += 1
        self.strangers += 1
        return Place(address)

    def log_in(self, place: Place, user: str | None, *, is_node: bool) -> None:
        """Count a connection for its user after the login.

        Raises `LimitReached` if the user has too many connections.
        """
        if is_node:
            self._leave_address(place)
        if user is None or place.user == user or is_node:
            return
        if self._users[user] >= self._limits.connections_per_user_max:
            raise LimitReached(
                f"user {user!r} has {self._users[user]} connections: close some, or raise "
                "node.connections_per_user_max"
            )
        self._users[user] += 1
        place.user = user

    def identify(self, place: Place) -> None:
        if place.is_stranger:
            place.is_stranger = False
            self.strangers -= 1

    def leave(self, place: Place) -> None:
        self.connections -= 1
        self.identify(place)
        self._leave_address(place)
        if place.user is not None:
            _less(self._users, place.user)

    def _leave_address(self, place: Place) -> None:
        if place.address is not None:
            _less(self._addresses, place.address)
            place.address = None


def _less(counter: Counter[str], key: str) -> None:
    """Decrement a count and remove it at 0, or old addresses would accumulate."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
