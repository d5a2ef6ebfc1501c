"""Where Spark is: a bar per step, on a terminal only.

Spark's own bars write over whatever else is on the terminal, so its status tracker is asked a few
times a second instead, by a thread that people never notice.
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
    """Who is told what is being done."""

    def step(self, says: str) -> contextlib.AbstractContextManager[None]: ...

    def watch(self, spark: SparkSession) -> None: ...


class SilentSteps:
    """Nobody looks."""

    def step(self, says: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def watch(self, spark: SparkSession) -> None:
        pass


class TerminalSteps:
    """A line each step: what, how far, how long."""

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
        """Draws while the block runs, and leaves the terminal as it was."""
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
            # Spark may be ending meanwhile.
            with contextlib.suppress(Exception):
                done, total = _tasks(self._spark)
                if total:
                    self._progress.update(
                        bar, completed=done, total=total, tasks=f"{done}/{total} tasks"
                    )


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Of the stages that run: tasks done, and all."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
