"""The interface of a consumer in an experiment: its prefetch is set, and the effect is measured.

There are implementations for existing consumers of a node, for an application's own worker, and for
a probe consumer on a queue of its own.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.core.prefetch import ConsumerSample

# The largest message of a probe. Some thousands of them wait in a broker's memory.
PROBE_BYTES_MAX = 1024 * 1024


class TunableConsumer(Protocol):
    """A consumer whose prefetch an experiment sets."""

    # Text for people: which consumer it is, and thus which one the experiment measures.
    says: str
    # Text for people who interrupt: the state that `close` restores.
    leaves: str
    # Whether it puts the messages that it consumes. If not, they are an application's and may run
    # out.
    feeds_itself: bool

    async def set_prefetch(self, prefetch: int) -> None:
        """Set the prefetch from now on."""

    async def measure(self, interval_s: float) -> ConsumerSample:
        """Measure for this time from now on."""

    async def close(self) -> None:
        """Restore the state before the experiment."""
