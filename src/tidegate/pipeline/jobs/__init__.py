"""The jobs of `tidegate learn`, in the order in which they run."""

from __future__ import annotations

from tidegate.pipeline.job import Job
from tidegate.pipeline.jobs import stability

JOBS: tuple[Job, ...] = (stability.JOB,)
