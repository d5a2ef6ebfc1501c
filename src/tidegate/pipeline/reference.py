"""The jobs and their tables, written down for the docs from what the jobs say of themselves."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.pipeline.jobs import JOBS


def jobs_table() -> str:
    """What each job reads and makes, in the order in which they run."""
    rows = ["| job | what it says | reads | tables |", "|---|---|---|---|"]
    rows += [
        f"| `{job.name}` | {job.says} | {_listed(job.reads)} | {_listed(job.writes)} |"
        for job in JOBS
    ]
    return "\n".join(rows)


def columns_table() -> str:
    """The columns of every table."""
    rows = ["| table | columns |", "|---|---|"]
    rows += [
        f"| `{table}` | " + ", ".join(f"`{field.name}`" for field in schema) + " |"
        for job in JOBS
        for table, schema in job.writes.items()
    ]
    return "\n".join(rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
