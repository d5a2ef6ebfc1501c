"""`tidegate learn` on a Spark that runs already; `test_session_ends` has it end with its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lake_of import LakeOf
from pyspark.sql import SparkSession
from refused_command import RefusedCommand
from typer.testing import CliRunner, Result

from tidegate.cli.app import app
from tidegate.console.reports import learned_models
from tidegate.telemetry.models import ModelRegistry
from tidegate.telemetry.schemas import QUEUE_SAMPLES, REQUESTS

Learn = Callable[..., Result]

AGREEMENT = """
name = "orders"
queue = "orders"
window = "60s"
[metrics.wait_p99]
breach = "6s"
"""


@pytest.fixture
def lake(lake_of: LakeOf) -> LakeOf:
    """Ten minutes of one queue, until a moment ago."""
    begins = (datetime.now(UTC) - timedelta(minutes=10)).replace(microsecond=0)
    moments = [begins + timedelta(seconds=second) for second in range(600)]
    for hour in sorted({at.replace(minute=0, second=0) for at in moments}):
        these = [at for at in moments if at.replace(minute=0, second=0) == hour]
        samples = [
            {
                "at": at,
                "queue": "orders",
                "put": 10,
                "acked": 10,
                "wait": [{"bucket": 100, "count": 10}],
            }
            for at in these
        ]
        lake_of.write(QUEUE_SAMPLES, samples)
        lake_of.write(REQUESTS, [{"at": at, "weight": 1.0, "total_us": 10.0} for at in these])
    return lake_of


@pytest.fixture
def learn(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learn:
    """`tidegate learn` in `tmp_path`, in this process: it takes the Spark that runs here."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    return lambda *words: CliRunner().invoke(app, ["learn", *words])


def test_learning_leaves_tables_and_says_what_it_did(
    lake: LakeOf, tmp_path: Path, learn: Learn
) -> None:
    agreement = tmp_path / "orders.toml"
    agreement.write_text(AGREEMENT)
    (tmp_path / "tidegate.toml").write_text(
        f"[telemetry]\nlake = '{lake.folder}'\n"
        "[pipeline]\nknowledge = 'known'\nagreements = ['orders.toml']\n"
        '[spark]\nmaster = "local[2]"\nspark.driver.memory = "1g"\n'
    )
    cut = lake.write(QUEUE_SAMPLES, [{"at": datetime.now(UTC)}])
    cut.write_bytes(b"PAR1")

    done = learn("--json")

    assert (done.exit_code, done.stderr) == (0, "")
    run = json.loads(done.stdout)
    assert {job["job"]: job["failure"] for job in run["jobs"]} == dict.fromkeys(
        (job["job"] for job in run["jobs"]), None
    )
    assert run["reading"]["queue_samples"]["rows"] == 600
    assert run["reading"]["queue_samples"]["files_left_out"] == {"cut or not Parquet": 1}
    knowledge = ModelRegistry(tmp_path / "known")
    levels = knowledge.table_folder("service_levels")
    assert levels is not None
    (level,) = pq.read_table(levels).to_pylist()
    assert level["met"] in (10, 11)
    assert (level["breached"], level["no_data"], level["budget_left"]) == (0, 0, 1.0)
    # And the console shows what is in it, and why it is used or not.
    shown = learned_models(tmp_path / "known")
    assert "orders" in {one.subject for one in shown}
    assert all(one.reason for one in shown if not one.accepted)
    assert all(one.learned_at > 0.0 for one in shown)


def test_learn_runs_one_named_job_and_prints_tabs(
    lake: LakeOf, tmp_path: Path, learn: Learn
) -> None:
    done = learn("--only", "stability", "--lake", str(lake.folder))

    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[1][0] == "queue_samples"
    assert lines[1][2:] == ["600", "-"]
    assert lines[4][0] == "stability"
    # Beside the store's data, unless told otherwise.
    assert (tmp_path / "tidegate-data" / "knowledge" / "latest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--lake", "nowhere"), 1, "there is no lake at"),
        (("--lake", "."), 3, "has no rows from"),
        (("--since", "7 weeks"), 2, "is not a duration"),
        (("--only", "stabilty"), 2, "there is no job stabilty"),
        (("--agreement", "gone.toml", "--lake", "."), 2, "gone.toml"),
    ],
)
def test_learn_refuses_invalid_arguments_without_starting_spark(
    tmp_path: Path,
    refused_command: RefusedCommand,
    arguments: tuple[str, ...],
    code: int,
    sentence: str,
) -> None:
    done = refused_command("learn", *arguments)

    assert (done.code, done.out) == (code, "")
    assert sentence in " ".join(done.err.split())
    assert not list(tmp_path.iterdir())
