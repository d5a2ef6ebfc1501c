"""The section [telemetry]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between, Duration


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded and where. `learn` and `report` read the recorded history."""

    enabled: bool = True
    # A folder, or a location that Arrow supports, such as s3://bucket/lake. None means `lake` in
    # store.data.
    lake: str | None = None
    # The time between samples; each queue and each consumer is a row per sample.
    interval_s: Annotated[Duration, Between(0.1, 60.0)] = msgspec.field(
        default=1.0, name="interval"
    )
    # The time between files. A kill of the process loses at most this much history.
    flush_s: Annotated[Duration, Between(0.2, 600.0)] = msgspec.field(default=5.0, name="flush")
    # Older hours are deleted; 0s keeps all hours.
    retention_s: Annotated[Duration, Between(0.0, 36_500 * 86_400.0)] = msgspec.field(
        default=30 * 86_400.0, name="retention"
    )
    # The approximate number of single requests and messages recorded per second and node; 0 records
    # none.
    requests_per_s: Annotated[int, Between(0, 10_000)] = 50
    lifecycles_per_s: Annotated[int, Between(0, 10_000)] = 50
