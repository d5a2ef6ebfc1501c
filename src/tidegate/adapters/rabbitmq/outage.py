"""Telling that a broker is gone once, however many connections of a client it ends.

The first connection that is lost says so, and the last one that is back again.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Outage:
    """Which connections of one client are lost."""

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
        """Its client is closed."""
        self._lost.discard(connection)
