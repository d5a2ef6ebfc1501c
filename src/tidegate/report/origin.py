"""The section on the origin of the numbers: rows read, rows left out, results of the jobs."""

from __future__ import annotations

from tidegate.report.chart import Section, Table
from tidegate.report.figures import count, counted, duration
from tidegate.report.learned import Learned
from tidegate.telemetry.knowledge import Run


def rows_read(run: Run) -> int:
    """Return how many rows of telemetry the run used."""
    return sum(reading.rows for reading in run.reading.values())


def left_out(run: Run) -> str:
    """Describe how many rows and files were left out, by reason."""
    rows: dict[str, int] = {}
    files: dict[str, int] = {}
    for reading in run.reading.values():
        for why, many in reading.rows_left_out.items():
            rows[why] = rows.get(why, 0) + many
        for why, many in reading.files_left_out.items():
            files[why] = files.get(why, 0) + many
    parts = [f"{counted(many, 'row')} {why}" for why, many in sorted(rows.items())]
    parts += [f"{counted(many, 'file')} {why}" for why, many in sorted(files.items())]
    return "; ".join(parts) or "nothing"


def origin_section(learned: Learned) -> Section:
    """Return tables of the telemetry and of the jobs, with the problems found while reading."""
    run = learned.run
    failed = [job for job in run.jobs if job.failure]
    return Section(
        "origin",
        "Where this comes from",
        f"The lake {run.lake}, read and learned from within {duration(run.seconds)}."
        + (f" {counted(len(failed), 'job')} failed." if failed else ""),
        tables=[
            Table(
                "Telemetry that was read, and what was left out of it.",
                ("rows of", "files", "rows read", "rows left out", "files left out"),
                [
                    (
                        kind.replace("_", " "),
                        count(reading.files),
                        count(reading.rows),
                        _reasons(reading.rows_left_out),
                        _reasons(reading.files_left_out),
                    )
                    for kind, reading in sorted(run.reading.items())
                ],
            ),
            Table(
                "What each job of `tidegate learn` made of it.".replace("`", ""),
                ("job", "took", "rows of tables", "models", "failed"),
                [
                    (
                        job.job,
                        duration(job.seconds),
                        ", ".join(f"{name} {count(rows)}" for name, rows in job.tables.items())
                        or "–",
                        f"{count(job.models_accepted)} accepted, "
                        f"{count(sum(job.models_refused.values()))} refused"
                        if job.models_accepted or job.models_refused
                        else "–",
                        job.failure or "–",
                    )
                    for job in run.jobs
                ],
            ),
        ],
        notes=learned.complaints,
    )


def _reasons(reasons: dict[str, int]) -> str:
    return "; ".join(f"{count(many)} {why}" for why, many in sorted(reasons.items())) or "–"
