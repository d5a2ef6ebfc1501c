"""The jobs of `tidegate learn`, in the order in which they run."""

from __future__ import annotations

from tidegate.pipeline.job import Job
from tidegate.pipeline.jobs import (
    capacity,
    compliance,
    forecast,
    http_capacity,
    identification,
    learned_warnings,
    lifecycle,
    phases,
    provisioning,
    services,
    stability,
)

JOBS: tuple[Job, ...] = (
    compliance.JOB,
    lifecycle.JOB,
    stability.JOB,
    services.JOB,
    phases.JOB,
    capacity.JOB,
    http_capacity.JOB,
    learned_warnings.JOB,
    identification.JOB,
    provisioning.JOB,
    forecast.JOB,
)
