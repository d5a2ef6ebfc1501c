"""The section [telemetry]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between, Duration


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded, and where to: history, from which `learn` and `report` are made."""

    enabled: bool = True
    # A folder, or an address that Arrow knows such as s3://bucket/lake. Not set: `lake` in
    # store.data.
    lake: str | None = None
    # Between samples; each queue and each consumer is a row.
    interval_s: Annotated[Duration, Between(0.1, 60.0)] = msgspec.field(
        default=1.0, name="interval"
    )
    # Between files: so much of the past a kill may cost.
    flush_s: Annotated[Duration, Between(0.2, 600.0)] = msgspec.field(default=5.0, name="flush")
    # Older hours are deleted; 0s keeps them for ever.
    retention_s: Annotated[Duration, Between(0.0, 36_500 * 86_400.0)] = msgspec.field(
        default=30 * 86_400.0, name="retention"
    )
    # About so many single requests and messages a second and node are recorded; 0: none.
    requests_per_s: Annotated[int, Between(0, 10_000)] = 50
    lifecycles_per_s: Annotated[int, Between(0, 10_000)] = 50
