"""The synthetic lake is what it says it is: deterministic, complete, with the plants it names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.telemetry.schemas import FILE_KEY, KINDS
from tidegate_lab.bench.pipeline import PipelineBenchFailed, PipelineOptions, check_disk, parse_rows
from tidegate_lab.bench.synthetic_lake import SyntheticLake, SyntheticOptions

OPTIONS = SyntheticOptions(subjects=10, rows_per_file=1_000)
KINDS_MADE = ("consumer_samples", "queue_samples", "lifecycles")


def files(folder: Path, kind: str) -> list[Path]:
    return sorted((folder / kind).rglob("*.parquet"))


def table(folder: Path, kind: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in files(folder, kind)])


@pytest.mark.parametrize("kind", KINDS_MADE)
def test_files_say_what_they_are(tmp_path: Path, kind: str) -> None:
    lake = SyntheticLake(tmp_path, OPTIONS)

    lake.grow_to(kind, 2_500)

    assert lake.rows(kind) == 2_500
    found = files(tmp_path, kind)
    assert [pq.read_metadata(file).num_rows for file in found] == [1_000, 1_000, 500]
    ids = set()
    for file in found:
        says = pq.read_schema(file).metadata
        assert KINDS[kind].file_metadata(says[FILE_KEY].decode()).items() <= says.items()
        assert pq.read_schema(file).remove_metadata().equals(KINDS[kind].columns)
        ids.add(says[FILE_KEY])
    assert len(ids) == len(found)


def test_a_lake_that_grew_is_the_same_as_one_made_at_once(tmp_path: Path) -> None:
    for kind in KINDS_MADE:
        grown = SyntheticLake(tmp_path / "grown", OPTIONS)
        grown.grow_to(kind, 1_000)
        grown.grow_to(kind, 3_000)
        SyntheticLake(tmp_path / "whole", OPTIONS).grow_to(kind, 3_000)

        assert table(tmp_path / "grown", kind).equals(table(tmp_path / "whole", kind))


def test_files_end_with_their_hour(tmp_path: Path) -> None:
    lake = SyntheticLake(tmp_path, SyntheticOptions(subjects=1, rows_per_file=5_000))

    lake.grow_to("lifecycles", 5_000)

    first, second = files(tmp_path, "lifecycles")
    assert first.parent.name == "hour=12"
    assert second.parent.name == "hour=13"
    assert pq.read_metadata(first).num_rows == 3_600


def test_consumers_follow_the_plants_that_are_named(tmp_path: Path) -> None:
    lake = SyntheticLake(tmp_path, OPTIONS)
    lake.grow_to("consumer_samples", 10_000)
    rows = table(tmp_path, "consumer_samples")

    known = rows.filter(rows.column("prefetch_before").is_valid())

    # One in a thousand, and the very first of each, does not know what was before.
    assert 0 < rows.num_rows - known.num_rows <= 30
    group = known.column("consumer").to_numpy()
    y, u = known.column("arrival_before_per_s").to_numpy(), known.column("prefetch_before")
    pushed = lake.plants.b[group] * np.minimum(u.to_numpy(), lake.plants.knee[group])
    left_over = known.column("arrival_per_s").to_numpy() - lake.plants.a[group] * y - pushed
    # The noise, and nothing else.
    assert abs((left_over / lake.plants.noise_per_s[group]).std() - 1.0) < 0.05


def test_histograms_count_what_was_acknowledged(tmp_path: Path) -> None:
    lake = SyntheticLake(tmp_path, OPTIONS)
    lake.grow_to("queue_samples", 1_000)

    for row in table(tmp_path, "queue_samples").to_pylist():
        assert sum(pair["count"] for pair in row["wait"]) == row["acked"]
        assert all(pair["count"] > 0 for pair in row["wait"])
        assert len(row["wait"]) <= 8


def test_rows_are_given_in_thousands_and_millions() -> None:
    assert parse_rows("500k, 1M,2.5m,7") == [500_000, 1_000_000, 2_500_000, 7]
    for wrong in ("many", "1M,,2M", "-5", "0"):
        with pytest.raises(ValueError, match="no number of rows"):
            parse_rows(wrong)


def test_a_lake_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(PipelineBenchFailed, match="TMPDIR"):
        check_disk(PipelineOptions(rows=(10**13,)), tmp_path)
