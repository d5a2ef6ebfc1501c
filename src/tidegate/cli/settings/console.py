"""The section [console]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between

# Larger than METRICS_PORT_OFFSET plus the consecutive ports that `up` uses, so that ranges are
# disjoint.
CONSOLE_PORT_OFFSET = 1500


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `up` serves the console. A non-loopback address needs TLS and users."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # None means CONSOLE_PORT_OFFSET above the first node's port, or a free port if that is in use.
    # 0 means a free port.
    port: Annotated[int | None, Between(0, 65535)] = None
    # Further names under which browsers reach it, such as that of a proxy: host, or host:port.
    names: list[str] = []
