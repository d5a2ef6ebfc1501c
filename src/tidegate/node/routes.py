"""The ways of one connection to queues of other nodes: one relay to each node, used while it holds.

Knows no session but while a relay is opened: a connection that ends must be gone at once, whether
or not anybody collects garbage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.node.relay import Relay

if TYPE_CHECKING:
    from tidegate.node.session import Session


class Routes:
    """Relays, by the address of their node and by the queues that they lead to."""

    __slots__ = ("_relays", "by_queue")

    def __init__(self) -> None:
        self._relays: dict[str, Relay] = {}
        # Where each queue was found last; a relay may have ended since.
        self.by_queue: dict[int, Relay] = {}

    def to(self, queue_id: int) -> Relay | None:
        """The way to the owner of a queue that this connection has used, if it still holds."""
        relay = self.by_queue.get(queue_id)
        return relay if relay is not None and relay.alive else None

    async def relay_to(self, address: str, session: Session) -> Relay:
        """The way to a node, in the name of that session's client."""
        relay = self._relays.get(address)
        if relay is None or not relay.alive:
            relay = await Relay.open(address, session)
            known = self._relays.get(address)
            if known is not None and known.alive:
                # Another queue of the same owner was quicker: one relay, or one is never closed.
                relay.close()
                return known
            self._relays[address] = relay
        return relay

    @property
    def is_relaying(self) -> bool:
        return bool(self._relays)

    def keep_to(self, addresses: set[str]) -> None:
        """End the relays to all other nodes: those are dead, and a paused one never says so."""
        for address, relay in list(self._relays.items()):
            if address not in addresses:
                relay.abort()

    def ended(self, relay: Relay) -> None:
        self._relays = {a: r for a, r in self._relays.items() if r is not relay}
        self.forget(relay)

    def forget(self, relay: Relay) -> None:
        """The other node no longer serves what we thought."""
        self.by_queue = {q: r for q, r in self.by_queue.items() if r is not relay}

    def pause_reading(self) -> None:
        for relay in self._relays.values():
            relay.pause_reading()

    def resume_reading(self) -> None:
        for relay in self._relays.values():
            relay.resume_reading()

    def close(self) -> None:
        for relay in list(self._relays.values()):
            relay.close()
