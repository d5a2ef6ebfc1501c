"""The section [node]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidegate.cli.settings.field import Between, Duration, Size

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node serves, and its bounds."""

    host: str = "127.0.0.1"
    # The host under which other machines reach the node; needed when it is not what it listens on.
    advertise: str | None = None
    port: Annotated[int, Between(0, 65535)] = 7411
    memory_bytes_max: Annotated[Size, Between(16 * _MIB, 1024 * _GIB)] = msgspec.field(
        default=512 * _MIB, name="memory"
    )
    lease_s: Annotated[Duration, Between(0.2, 3600.0)] = msgspec.field(default=3.0, name="lease")
    heartbeat_s: Annotated[Duration, Between(0.1, 3600.0)] = msgspec.field(
        default=10.0, name="heartbeat"
    )
    handshake_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=10.0, name="handshake"
    )
    message_bytes_max: Annotated[Size, Between(1, 16 * _MIB)] = 16 * _MIB
    frame_before_login_bytes_max: Annotated[Size, Between(256, _MIB)] = msgspec.field(
        default=8 * _KIB, name="frame_before_login"
    )
    connections_max: Annotated[int, Between(1, 1_000_000)] = 5000
    connections_per_address_max: Annotated[int, Between(1, 1_000_000)] = 5000
    connections_per_user_max: Annotated[int, Between(1, 1_000_000)] = 2000
    # A connection that reads nothing for so long, while there is something for it, is ended.
    slow_reader_s: Annotated[Duration, Between(1.0, 3600.0)] = msgspec.field(
        default=30.0, name="slow_reader"
    )
    # Who needs no login. auto: clients on this machine, until the first user is made.
    login: Literal["auto", "always"] = "auto"
    # How long a consumer may hold a message without a sign of life.
    delivery_lease_s: Annotated[Duration, Between(0.1, 86400.0)] = msgspec.field(
        default=60.0, name="delivery_lease"
    )
    # Connections that write to the store, one commit at a time each.
    writers: Annotated[int, Between(1, 64)] = 1
    # How long acknowledgements that nobody waits for are gathered.
    settle_linger_s: Annotated[Duration, Between(0.0, 1.0)] = msgspec.field(
        default=0.05, name="settle_linger"
    )
