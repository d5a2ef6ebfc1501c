"""Which files of a lake count, for whoever reads it."""

from __future__ import annotations

import json
from datetime import timedelta

from lake_of import NOON, LakeOf

from tidegate.pipeline.lake import REPLACED, LakeFolder, survey
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.schemas import QUEUE_SAMPLES, REPLACES_KEY

DAY = timedelta(days=1)


def test_of_two_that_compacted_an_hour_at_a_time_the_one_that_saw_more_counts(
    lake_of: LakeOf,
) -> None:
    # The parts are deleted already; both wholes hold the rows of the first two.
    for parts in (["1", "2"], ["1", "2", "3"]):
        lake_of.write(
            QUEUE_SAMPLES,
            [{"at": NOON}] * len(parts),
            metadata={REPLACES_KEY: json.dumps(parts).encode()},
        )

    found = survey(LakeFolder.of(str(lake_of.folder)), [QUEUE_SAMPLES], NOON - DAY, NOON + DAY)

    assert found["queue_samples"].rows == 3
    assert found["queue_samples"].left_out == {REPLACED: 1}


def test_a_folder_that_names_no_hour_stops_no_node(lake_of: LakeOf) -> None:
    path = lake_of.write(QUEUE_SAMPLES, [{"at": NOON}])
    odd = path.parent.parent / "hour=99" / path.name
    odd.parent.mkdir()
    odd.write_bytes(path.read_bytes())

    assert [file.path for file in Lake(str(lake_of.folder)).files("queue_samples")] == [str(path)]
