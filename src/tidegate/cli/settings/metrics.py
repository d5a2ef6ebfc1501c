"""The section [metrics]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between

# More than nodes that `up` starts on consecutive ports.
METRICS_PORT_OFFSET = 1000


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node shows /metrics, /healthz and /readyz; whoever gets there may read."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # Not set: METRICS_PORT_OFFSET above the node's own, or any free one. 0: any free one.
    port: Annotated[int | None, Between(0, 65535)] = None
    # Queues that are shown; the others are counted.
    queues_max: Annotated[int, Between(1, 100_000)] = 500
