"""What was learned: models with their versions, and the tables of each run of `learn`.

Written by the pipeline, read by loops, reports and consoles, which need no Spark for it.
"""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, frozen=True):
    """What was learned of one subject, how well, and whether it may be used."""

    # What it is of, such as a consumer group or a queue.
    subject: str
    accepted: bool
    # Why, in a sentence; of an accepted one too.
    reason: str
    parameters: dict[str, float]
    quality: dict[str, float]
    rows: int
    # The range of the data that it was learned from, in seconds since 1970.
    from_s: float
    to_s: float
