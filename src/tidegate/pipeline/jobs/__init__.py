"""The jobs of `tidegate learn`, in the order in which they run."""

from __future__ import annotations

from tidegate.pipeline.job import Job
from tidegate.pipeline.jobs import (
    capacity,
    compliance,
    forecast,
    identification,
    lifecycle,
    phases,
    provisioning,
    stability,
)

JOBS: tuple[Job, ...] = (
    compliance.JOB,
    lifecycle.JOB,
    stability.JOB,
    phases.JOB,
    capacity.JOB,
    identification.JOB,
    provisioning.JOB,
    forecast.JOB,
)
