"""The relays of one session: one for each other node.

`Relays` does not keep a reference to the session. The session can then be freed without the garbage
collector when its connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.node.relay import Relay

if TYPE_CHECKING:
    from tidegate.node.session import Session


class Routes:
    """The relays of a session, by the address of the node and by queue."""

    __slots__ = ("_relays", "by_queue")

    def __init__(self) -> None:
        self._relays: dict[str, Relay] = {}
        # The relay used last for each queue; it may have ended since.
        self.by_queue: dict[int, Relay] = {}

    def to(self, queue_id: int) -> Relay | None:
        """Return the relay to the owner of a queue that the session has used; None if it ended."""
        relay = self.by_queue.get(queue_id)
        return relay if relay is not None and relay.alive else None

    async def relay_to(self, address: str, session: Session) -> Relay:
        """Return the relay to the node at `address`, opening it in the name of `session`."""
        relay = self._relays.get(address)
        if relay is None or not relay.alive:
            relay = await Relay.open(address, session)
            known = self._relays.get(address)
            if known is not None and known.alive:
                # Another queue of the same owner was faster. Keep one relay, or the other would
                # never be closed.
                relay.close()
                return known
            self._relays[address] = relay
        return relay

    @property
    def is_relaying(self) -> bool:
        return bool(self._relays)

    def keep_to(self, addresses: set[str]) -> None:
        """Abort the relays to all nodes but `addresses`.

        The other nodes are dead, and a paused one does not close its connection.
        """
        for address, relay in list(self._relays.items()):
            if address not in addresses:
                relay.abort()

    def ended(self, relay: Relay) -> None:
        self._relays = {a: r for a, r in self._relays.items() if r is not relay}
        self.forget(relay)

    def forget(self, relay: Relay) -> None:
        """Locate all queues of this relay again: the other node no longer owns one of them."""
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
