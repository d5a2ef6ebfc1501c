"""Progress of Spark's work: one bar per step, on a terminal only.

Spark's own progress bars overwrite other output of the terminal. A thread therefore polls Spark's
status tracker every 0.2 s while a step runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_LOOK_EVERY_S = 0.2


class Steps(Protocol):
    """Receives the steps of a run: shows them, or ignores them.

    `step` returns a context manager that covers one step. After `watch`, steps also show the task
    counts of that session.
    """

    def step(self, says: str) -> contextlib.AbstractContextManager[None]: ...

    def watch(self, spark: SparkSession) -> None: ...


class SilentSteps:
    """A `ProgressReporter` that shows nothing."""

    def step(self, says: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def watch(self, spark: SparkSession) -> None:
        pass


class TerminalSteps:
    """A `ProgressReporter` that shows a line per step: description, tasks done, time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[tasks]}", justify="right", style="dim"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._spark: SparkSession | None = None

    def watch(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextlib.contextmanager
    def showing(self) -> Iterator[TerminalSteps]:
        """Draw while the block runs; erase the bars and restore the terminal when it ends."""
        with self._progress:
            yield self

    @contextlib.contextmanager
    def step(self, says: str) -> Iterator[None]:
        bar = self._progress.add_task(says, total=None, tasks="")
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(bar, over), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
            self._progress.update(bar, total=1, completed=1, tasks="")

    def _look(self, bar: TaskID, over: threading.Event) -> None:
        while not over.wait(_LOOK_EVERY_S):
            if self._spark is None:
                continue
            # Spark may stop while this thread asks.
            with contextlib.suppress(Exception):
                done, total = _tasks(self._spark)
                if total:
                    self._progress.update(
                        bar, completed=done, total=total, tasks=f"{done}/{total} tasks"
                    )


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Return the number of completed tasks and of all tasks, over the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
