"""The folder of learned models with their versions, and of the tables of each run of `learn`.

    <folder>/runs/<run>/<table>/*.parquet    the tables of one run
    <folder>/runs/<run>/run.json             the record of the run: inputs, exclusions, durations
    <folder>/latest.json                     the newest run, overall and for each table
    <folder>/models/<kind>/000001.json       the models of one kind from one run
    <folder>/models/accepted.json            kind → subject → version of its newest accepted model

The pipeline writes the folder. Control loops, reports and consoles read it, and need no Spark for
it.

Files are written whole and renamed into place. Files that refer to others are written last, so that
a reader sees either the previous run or the new one. Writers take a lock, so that two concurrent
runs neither share a version nor overwrite each other's marks.

A reader treats an unreadable file, or one of a newer schema, as missing, and reports it. A writer
refuses a folder of a newer schema.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate.core.errors import TidegateError

SCHEMA = 1
RUNS_KEPT = 10
GIVEN_UP_AFTER_S = 86_400.0
_MODEL_FILE = re.compile(r"(\d{6})\.json")

OnProblem = Callable[[str], None]
AnyStruct = TypeVar("AnyStruct")


class ModelRegistryRefused(TidegateError):
    """The folder cannot be written to; the text gives the reason."""

    name = "KNOWLEDGE_REFUSED"


class StoredModel(msgspec.Struct, frozen=True):
    """A learned model of one subject, its quality, and whether it may be used."""

    # For example, a consumer group or a queue.
    subject: str
    accepted: bool
    # The reason for accepting or refusing the model, as a sentence.
    reason: str
    # Values that a poor fit lacks (NaN) are omitted when written.
    parameters: dict[str, float]
    quality: dict[str, float]
    rows: int
    # The time range of the data, in seconds since 1970.
    from_s: float = msgspec.field(name="from")
    to_s: float = msgspec.field(name="to")


class DataRange(msgspec.Struct, frozen=True):
    """The time range and number of rows that models were learned from."""

    from_s: float = msgspec.field(name="from")
    to_s: float = msgspec.field(name="to")
    rows: int


class ModelFile(msgspec.Struct, frozen=True):
    """The models of one kind from one run."""

    schema: int
    kind: str
    version: int
    learned_at: datetime
    run: str
    data: DataRange
    models: list[StoredModel]


class ReadCounts(msgspec.Struct):
    """The counts of one kind of rows that a run read and left out, by reason."""

    files: int = 0
    rows: int = 0
    files_left_out: dict[str, int] = {}
    rows_left_out: dict[str, int] = {}


class JobRecord(msgspec.Struct, frozen=True):
    """The result of one job of a run."""

    job: str
    seconds: float
    # Rows by table.
    tables: dict[str, int] = {}
    models_accepted: int = 0
    # The number of refused models by reason.
    models_refused: dict[str, int] = {}
    failure: str | None = None


class LearningRun(msgspec.Struct, frozen=True):
    """The record of one run of `learn`."""

    schema: int
    run: str
    learned_at: datetime
    # The times of the first and last recorded row.
    since: datetime
    until: datetime
    seconds: float
    lake: str
    agreements: list[str]
    reading: dict[str, ReadCounts]
    jobs: list[JobRecord]


class LatestRuns(msgspec.Struct, frozen=True):
    """The newest run, overall and per table."""

    schema: int
    run: str
    # The newest run with each table; a run may consist of some jobs only.
    tables: dict[str, str]


class _Stamp(msgspec.Struct, frozen=True):
    """The only field that a file of a newer schema is certain to have."""

    schema: int = SCHEMA


class ModelRegistry:
    """One folder of learned models and run tables."""

    def __init__(self, folder: Path, complain: OnProblem = lambda _: None) -> None:
        self.folder = folder
        self._complain = complain

    # ---- reading

    def latest(self) -> LatestRuns | None:
        """Return the newest complete run; None before the first."""
        return self._read(self.folder / "latest.json", LatestRuns)

    def run(self, name: str | None = None) -> LearningRun | None:
        """Return the record of one run, by default the newest; None if it cannot be read."""
        if name is None:
            latest = self.latest()
            if latest is None:
                return None
            name = latest.run
        return self._read(self.folder / "runs" / name / "run.json", LearningRun)

    def table_folder(self, table: str) -> Path | None:
        """Return the folder of the newest Parquet files of a table; None if there are none."""
        latest = self.latest()
        run = latest.tables.get(table) if latest else None
        folder = self.folder / "runs" / run / table if run else None
        return folder if folder is not None and folder.is_dir() else None

    def accepted(self, kind: str) -> dict[str, StoredModel]:
        """Return the newest accepted model of each subject of a kind."""
        marked = self._accepted_versions().get(kind, {})
        found: dict[str, StoredModel] = {}
        for version in sorted(set(marked.values())):
            file = self.model_file(kind, version)
            for model in file.models if file else []:
                if model.accepted and marked.get(model.subject) == version:
                    found[model.subject] = model
        return found

    def model_file(self, kind: str, version: int) -> ModelFile | None:
        """Return all models of a kind from one run, accepted or refused; None if unreadable."""
        return self._read(self._model_path(kind, version), ModelFile)

    def newest_version(self, kind: str) -> int:
        """Return the version of the newest file of a kind; 0 before the first."""
        matches = (_MODEL_FILE.fullmatch(file.name) for file in (self._models / kind).glob("*"))
        return max((int(match[1]) for match in matches if match), default=0)

    # ---- writing

    def check_writable(self) -> None:
        """Raise `ModelRegistryRefused` unless a run can be written to this folder."""
        with self._alone():
            latest = self.folder / "latest.json"
            if latest.exists() and _schema_of(latest.read_bytes()) > SCHEMA:
                raise ModelRegistryRefused(
                    f"{self.folder} was written by a newer Tidegate: upgrade this one, or name "
                    "another folder with --knowledge"
                )

    def begin_run(self, now: datetime) -> str:
        """Create the folder for the tables of a new run, and return the run's name."""
        self.check_writable()
        stem = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._alone():
            (self.folder / "runs").mkdir(exist_ok=True)
            for number in range(1, 1000):
                name = stem if number == 1 else f"{stem}-{number:03}"
                with contextlib.suppress(FileExistsError):
                    self.run_folder(name).mkdir()
                    return name
            raise FileExistsError(f"too many runs called {stem}")

    def run_folder(self, run: str) -> Path:
        return self.folder / "runs" / run

    def add_models(
        self, kind: str, run: str, learned_at: datetime, models: Sequence[StoredModel]
    ) -> ModelFile:
        """Write the models of a kind from one run, and mark the accepted ones."""
        with self._alone():
            return self._add_models(kind, run, learned_at, models)

    def _add_models(
        self, kind: str, run: str, learned_at: datetime, models: Sequence[StoredModel]
    ) -> ModelFile:
        file = ModelFile(
            schema=SCHEMA,
            kind=kind,
            version=self.newest_version(kind) + 1,
            learned_at=learned_at,
            run=run,
            data=DataRange(
                from_s=min((model.from_s for model in models), default=0.0),
                to_s=max((model.to_s for model in models), default=0.0),
                rows=sum(model.rows for model in models),
            ),
            models=[_without_gaps(model) for model in models],
        )
        _write(self._model_path(kind, file.version), file)
        marked = self._accepted_versions()
        fresh = {model.subject: file.version for model in models if model.accepted}
        marked[kind] = marked.get(kind, {}) | fresh
        _write(self._models / "accepted.json", marked)
        return file

    def finish_run(self, run: LearningRun) -> None:
        """Publish a complete run to readers, and delete the oldest runs."""
        with self._alone():
            _write(self.run_folder(run.run) / "run.json", run)
            before = self.latest()
            tables = dict(before.tables) if before else {}
            for job in run.jobs:
                tables |= dict.fromkeys(job.tables, run.run)
            _write(self.folder / "latest.json", LatestRuns(SCHEMA, run.run, tables))
            self._prune(keep={run.run, *tables.values()})

    def abandon_run(self, run: str) -> None:
        """Delete the folder of a run that failed."""
        shutil.rmtree(self.run_folder(run), ignore_errors=True)

    # ---- private

    @property
    def _models(self) -> Path:
        return self.folder / "models"

    def _model_path(self, kind: str, version: int) -> Path:
        return self._models / kind / f"{version:06}.json"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of writers; the system releases the lock of a killed process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / ".lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise ModelRegistryRefused(
                f"{error.filename or self.folder} cannot be written: {error.strerror or error}"
            ) from error

    def _accepted_versions(self) -> dict[str, dict[str, int]]:
        file = self._models / "accepted.json"
        found = self._read(file, dict[str, dict[str, int]])
        # A damaged file can be rebuilt from the model files.
        return found if found is not None else self._marked_anew() if file.exists() else {}

    def _marked_anew(self) -> dict[str, dict[str, int]]:
        marked: dict[str, dict[str, int]] = {}
        for path in sorted(self._models.glob("*/*.json")):
            file = self._read(path, ModelFile) if _MODEL_FILE.fullmatch(path.name) else None
            for model in file.models if file else []:
                if file is not None and model.accepted:
                    marked.setdefault(path.parent.name, {})[model.subject] = file.version
        return marked

    def _prune(self, keep: set[str]) -> None:
        runs = sorted((self.folder / "runs").iterdir())
        finished = [folder for folder in runs if (folder / "run.json").exists()]
        newest_s = max(folder.stat().st_mtime for folder in finished)
        # A run without a record may still be in progress, or was killed.
        given_up = [
            folder
            for folder in runs
            if folder not in finished and folder.stat().st_mtime < newest_s - GIVEN_UP_AFTER_S
        ]
        for folder in [*finished[:-RUNS_KEPT], *given_up]:
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, file: Path, kind: type[AnyStruct]) -> AnyStruct | None:
        try:
            content = file.read_bytes()
            if _schema_of(content) > SCHEMA:
                self._complain(f"{file} is of a newer Tidegate and was passed over: upgrade")
                return None
            return msgspec.json.decode(content, type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._complain(f"{file} cannot be read and was passed over: {error}")
            return None


def _schema_of(content: bytes) -> int:
    """Return the schema that a file declares; the present one if it declares none."""
    try:
        return msgspec.json.decode(content, type=_Stamp).schema
    except msgspec.DecodeError:
        return SCHEMA


def _without_gaps(model: StoredModel) -> StoredModel:
    """Return the model without its NaN values, which JSON does not support."""
    return msgspec.structs.replace(
        model,
        parameters={k: v for k, v in model.parameters.items() if math.isfinite(v)},
        quality={k: v for k, v in model.quality.items() if math.isfinite(v)},
    )


def _write(file: Path, value: Any) -> None:
    """Write a file completely or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("wb") as sink:
        sink.write(msgspec.json.format(msgspec.json.encode(value), indent=2))
        sink.flush()
        os.fsync(sink.fileno())
    partial.replace(file)
