"""The section [metrics]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between

# Larger than the number of consecutive ports that `up` uses for nodes, so that the ranges are
# disjoint.
METRICS_PORT_OFFSET = 1000


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node serves /metrics, /healthz and /readyz, which need no login."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # None means METRICS_PORT_OFFSET above the node's port, or a free port if that is in use. 0
    # means a free port.
    port: Annotated[int | None, Between(0, 65535)] = None
    # The number of queues with metrics of their own. The node reports how many it leaves out.
    queues_max: Annotated[int, Between(1, 100_000)] = 500
