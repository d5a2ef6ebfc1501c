"""What jobs and `learn` say of one thing, of several and of none reads as people would say it."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from tidegate.cli.learn import left_out, show_run
from tidegate.cli.output import Output
from tidegate.pipeline.jobs.services import boot_time, growth, machine_capacity
from tidegate.telemetry.models import SCHEMA, LearningRun, ReadCounts


def test_left_out_text_uses_the_singular_for_one_file() -> None:
    reading = ReadCounts(files=3, rows=10)
    reading.files_left_out["cut"] = 1
    reading.rows_left_out["NaN"] = 1204
    assert left_out(reading) == "1 file cut; 1,204 rows NaN"


def test_figures_of_one_node_and_one_boot_use_the_singular() -> None:
    assert machine_capacity([200.0]).says == "one node under load"
    assert machine_capacity([200.0, 300.0]).says == "median of 2 nodes under load"
    assert boot_time([60.0]).says.endswith("of 1 boot")
    assert boot_time([60.0, 70.0]).says.endswith("of 2 boots")


def test_production_that_never_grew_has_no_speed_of_growth() -> None:
    begins_s = np.arange(0.0, 300.0, 5.0)
    assert growth(begins_s, np.full(60, 5.0)).says == "production never grew for a whole minute"
    growing = growth(begins_s, begins_s * 2.0)
    assert growing.says == "production never grew faster than 2 msg/s² over a minute"


def test_the_first_column_of_what_was_read_holds_kinds_and_is_called_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    noon = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
    reading = {"queue_samples": ReadCounts(files=3, rows=10)}
    show_run(LearningRun(SCHEMA, "run", noon, noon, noon, 1.0, "lake", [], reading, []), Output())
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:3] for line in printed[:2]] == [
        ["kind", "files", "read"],
        ["queue_samples", "3", "10"],
    ]
