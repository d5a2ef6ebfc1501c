"""A job: which kinds of rows it reads, which tables and models it makes of them.

    JOB = Job("stability", "Stable, flooded or draining", reads=("queue_samples",), …)

A job is named transforms between checked schemas: what it gets has been cleaned and checked by the
lake, what it returns is checked against `writes` before anything is stored. It only describes its
tables; Spark computes them when `learn` writes them down. Jobs know neither folders nor sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidegate.agreement.document import Agreement
from tidegate.pipeline.windows import width_for
from tidegate.telemetry.knowledge import Model


@dataclass(frozen=True)
class Inputs:
    """What a job may look at."""

    # By kind; one that the lake has no rows of is an empty frame with its schema.
    frames: Mapping[str, DataFrame]
    agreements: Sequence[Agreement]
    # When what is there begins and ends.
    since: datetime
    until: datetime

    @property
    def window_s(self) -> float:
        """How wide windows are, where neither an agreement nor a law says so."""
        return width_for((self.until - self.since).total_seconds())


@dataclass(frozen=True)
class Outcome:
    """What a job found: tables by name, and models, accepted or not."""

    tables: Mapping[str, DataFrame] = field(default_factory=dict)
    models: Sequence[Model] = ()


@dataclass(frozen=True)
class Job:
    """One step of `learn`."""

    name: str
    says: str
    reads: tuple[str, ...]
    writes: Mapping[str, StructType]
    run: Callable[[Inputs], Outcome]
    # The kind of its models, if that is not its name.
    models: str = ""
