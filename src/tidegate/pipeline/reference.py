"""Tables of the jobs for the generated documentation, from what the jobs declare."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.pipeline.jobs import JOBS


def jobs_table() -> str:
    """Return a table of what each job reads and writes, in the order in which the jobs run."""
    rows = ["| job | what it says | reads | tables |", "|---|---|---|---|"]
    rows += [
        f"| `{job.name}` | {job.says} | {_listed(job.reads)} | {_listed(job.writes)} |"
        for job in JOBS
    ]
    return "\n".join(rows)


def columns_table() -> str:
    """Return a table of the columns of every table that jobs write."""
    rows = ["| table | columns |", "|---|---|"]
    rows += [
        f"| `{table}` | " + ", ".join(f"`{field.name}`" for field in schema) + " |"
        for job in JOBS
        for table, schema in job.writes.items()
    ]
    return "\n".join(rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
