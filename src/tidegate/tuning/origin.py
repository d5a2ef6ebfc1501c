"""The origin of a model, for people who find its file later."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """The origin of one experiment."""

    # "rabbitmq" or "tidegate".
    engine: str
    queue: str
    # Seconds since 1970.
    made_at: float
