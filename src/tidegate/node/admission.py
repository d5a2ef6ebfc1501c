"""Who may stay connected: bounds on all, on strangers, on an address, on a user.

A connection is a stranger until it is identified; strangers get at most half of the places, so
that whoever opens sockets and says nothing cannot take those of clients. Other nodes come with
many connections of many users: they count for the whole node only.
"""

from __future__ import annotations

from collections import Counter

from tidegate.core.errors import LimitReached
from tidegate.node.limits import Limits


class Place:
    """What one connection takes."""

    __slots__ = ("address", "is_stranger", "user")

    def __init__(self, address: str) -> None:
        # None: it no longer counts for its address.
        self.address: str | None = address
        self.user: str | None = None
        self.is_stranger = True


class Admission:
    """The places of a node."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self.connections = 0
        self.strangers = 0

    def arrive(self, address: str) -> Place:
        """A place for a new connection; LimitReached when there is none."""
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
        """It is somebody now; LimitReached when that user has too many."""
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
    """Forget who has none left, or addresses would pile up."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
