"""A consumer that somebody experiments with: its prefetch is set, and what comes of it is measured.

One implementation for each way there is to such a consumer: standing ones of a node, an
application's own worker, or a probe of ours on a queue of its own (adapters, tuning).
"""

from __future__ import annotations

from typing import Protocol

from tidegate.core.prefetch import ConsumerSample

# Of a probe's messages, of which some thousand wait in a broker's memory.
PROBE_BYTES_MAX = 1024 * 1024


class TunableConsumer(Protocol):
    """What an experiment needs of a consumer."""

    # For people: whose consumer it is, and what therefore is measured.
    says: str
    # For people who interrupt: what is so again, once it is closed.
    leaves: str
    # Whether it puts the messages itself that it consumes; else they are somebody's, and may end.
    feeds_itself: bool

    async def set_prefetch(self, prefetch: int) -> None:
        """From now on."""

    async def measure(self, interval_s: float) -> ConsumerSample:
        """What arrives from now on for so long."""

    async def close(self) -> None:
        """Leave everything as it was before."""
