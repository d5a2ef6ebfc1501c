"""Logging of an outage once, even if a client loses several connections.

The first lost connection logs the loss, and the last one that returns logs the recovery.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Outage:
    """The lost connections of one client."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lost: set[object] = set()

    def begins_for(self, connection: object) -> None:
        if not self._lost:
            log.warning("the connection to RabbitMQ was lost", extra={"url": self._shown})
        self._lost.add(connection)

    def ends_for(self, connection: object) -> None:
        if connection in self._lost:
            self._lost.discard(connection)
            if not self._lost:
                log.info("connected to RabbitMQ again", extra={"url": self._shown})

    def forget(self, connection: object) -> None:
        """Remove a connection whose client is closed."""
        self._lost.discard(connection)
