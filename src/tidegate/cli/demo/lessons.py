"""The learning step of the demo: Spark learns from the run, and writes a report page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidegate.cli.demo.evidence import agreed
from tidegate.cli.demo.outcome import Outcome
from tidegate.cli.demo.story import ARCHIVE, ARCHIVE_AGREEMENT
from tidegate.cli.learning import progress, warn, with_spark
from tidegate.cli.output import Output

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.telemetry.knowledge import Knowledge, Model

# All recorded data lies within this time.
_BACK = timedelta(hours=1)


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """One learned model, with the reason for accepting or refusing it."""

    kind: str
    subject: str
    accepted: bool
    reason: str


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the learning step."""

    lessons: list[Lesson]
    # The error of each failed job.
    failures: dict[str, str]
    # For each agreement the windows met, warned and breached, from the lake, for the period of the
    # leader's totals.
    compliance: dict[str, tuple[int, int, int]]
    report: str
    seconds: float


def teach(data: Path, outcome: Outcome, page: Path, output: Output) -> Learned:
    """Learn from the lake up to the end of the load, and write the report page."""
    knowledge = data / "knowledge"
    until = datetime.now(UTC) if outcome.closed is None else outcome.closed.at
    since = until - _BACK if outcome.opened is None else outcome.opened.at
    with with_spark():
        from tidegate.pipeline.jobs import JOBS
        from tidegate.pipeline.learning import Assignment, learn
        from tidegate.pipeline.session import SparkOptions
        from tidegate.pipeline.survey import Place
        from tidegate.report.learned import Learned as Shelf
        from tidegate.report.report import document_of, write_report
        from tidegate.telemetry.knowledge import Knowledge

        promised = agreements()
        assignment = Assignment(
            lake=Place.of(str(data / "lake")),
            jobs=JOBS,
            agreements=promised,
            since=until - _BACK,
            until=until,
        )
        store = Knowledge(knowledge, warn)
        with progress(output) as steps:
            run = learn(assignment, store, SparkOptions(), steps)
        write_report(document_of(Shelf(knowledge), agreements=promised), page)
    kinds = dict.fromkeys(job.models or job.name for job in JOBS)
    return Learned(
        lessons=[
            Lesson(kind=kind, subject=model.subject, accepted=model.accepted, reason=model.reason)
            for kind in kinds
            for model in _models(store, kind)
        ],
        failures={job.job: job.failure for job in run.jobs if job.failure},
        compliance=compliance_since(store.run_folder(run.run), since),
        report=str(page),
        seconds=run.seconds,
    )


def _models(store: Knowledge, kind: str) -> list[Model]:
    """Return the models of a kind from the last run, accepted or refused."""
    found = store.model_file(kind, store.newest_version(kind))
    return [] if found is None else found.models


def agreements() -> list[Agreement]:
    """Return the agreements of the demo's queues."""
    from tidegate.agreement.document import parse_agreement

    archive = parse_agreement(ARCHIVE_AGREEMENT, f"the demo's agreement for {ARCHIVE}")
    return [agreed(), archive]


def compliance_since(run_folder: Path, since: datetime) -> dict[str, tuple[int, int, int]]:
    """Return the windows met, warned and breached since a time, for each agreement."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    windows = run_folder / "compliance"
    if not windows.is_dir():
        return {}
    table = pq.read_table(windows, columns=["agreement", "window", "verdict"])
    begins_us = table.column("window").cast(pa.timestamp("us", "UTC")).cast("int64").to_pylist()
    verdicts: dict[str, list[str]] = {}
    for row, begins in zip(table.to_pylist(), begins_us, strict=True):
        if begins >= since.timestamp() * 1e6:
            verdicts.setdefault(row["agreement"], []).append(row["verdict"])
    return {
        name: (of_one.count("met"), of_one.count("warned"), of_one.count("breached"))
        for name, of_one in sorted(verdicts.items())
    }
