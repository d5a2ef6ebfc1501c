"""What a job of `learn` is: the row kinds it reads, and the tables and models it produces.

    STABILITY_JOB = Job("stability", "Stable, flooded or draining", reads=("queue_samples",), …)

A job is a function from frames to tables and models. Its input has been cleaned and checked by
`pipeline.lake`. Its output is checked against `writes` before it is stored. A job only describes
its tables; Spark computes them when `learn` writes them. Jobs know neither folders nor sessions.
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
    """The input of a job."""

    # By kind; a kind without rows is an empty frame with its schema.
    frames: Mapping[str, DataFrame]
    agreements: Sequence[Agreement]
    # The times of the first and the last row of the lake, over all kinds.
    since: datetime
    until: datetime

    @property
    def window_s(self) -> float:
        """The width of windows in seconds, where neither an agreement nor a law gives one."""
        return width_for((self.until - self.since).total_seconds())


@dataclass(frozen=True)
class Outcome:
    """The output of a job: tables by name, and models, accepted or refused."""

    tables: Mapping[str, DataFrame] = field(default_factory=dict)
    models: Sequence[Model] = ()


@dataclass(frozen=True)
class Job:
    """One step of `learn`.

    `says` describes the job in the generated documentation.
    """

    name: str
    says: str
    reads: tuple[str, ...]
    writes: Mapping[str, StructType]
    run: Callable[[Inputs], Outcome]
    # The kind under which its models are stored; empty means the name of the job.
    models: str = ""
