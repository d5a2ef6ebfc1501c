"""Where a model comes from, for those who find its file a year later."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Of one experiment."""

    # "rabbitmq", "tidegate".
    engine: str
    queue: str
    # Seconds since 1970.
    made_at: float
