"""The section [console]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.cli.settings.field import Between

# More than nodes that `up` starts on consecutive ports, beyond those of their metrics.
CONSOLE_PORT_OFFSET = 1500


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `up` serves the console; beyond this machine it needs TLS and users."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # Not set: CONSOLE_PORT_OFFSET above the first node's, or any free one. 0: any free one.
    port: Annotated[int | None, Between(0, 65535)] = None
    # Other names that it goes by, such as that of a proxy before it: host, or host:port.
    names: list[str] = []
