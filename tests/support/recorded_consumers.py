"""A lake of which one model can be learned, and of which one cannot."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from tidegate.telemetry.lake import Lake
from tidegate.telemetry.schemas import CONSUMER_SAMPLES
from tidegate_lab.bench.synthetic_lake import BEGINS_S, HOUR_S, SyntheticLake, SyntheticOptions

# Whose prefetch never changed.
IDLE = "payments/clerk"
_SECONDS = 8_000


def record_consumers(folder: Path) -> str:
    """The group whose prefetch was excited."""
    lake = SyntheticLake(folder, SyntheticOptions(subjects=1, rows_per_file=100_000))
    lake.grow_to(CONSUMER_SAMPLES.name, _SECONDS)
    begins = lake.begins()
    row = {
        "interval_s": 1.0,
        "node": "node-0",
        "queue": "payments",
        "group": IDLE,
        "client": "clerk",
        "consumer": 1,
        "automatic": False,
        "delivered": 10,
        "acked": 10,
        "service_s_sum": 0.1,
        "service": [],
        "prefetch": 5,
        "unacknowledged": 5,
        "arrival_per_s": 10.0,
        "arrival_before_per_s": 10.0,
        "prefetch_before": 5,
    }
    rows = [row | {"at": begins + timedelta(seconds=second)} for second in range(300)]
    table = pa.Table.from_pylist(rows, schema=CONSUMER_SAMPLES.columns)
    Lake(str(folder)).write(
        CONSUMER_SAMPLES, BEGINS_S // HOUR_S, [table], writer="test", run="test"
    )
    (group,) = lake.names("group")
    return group
