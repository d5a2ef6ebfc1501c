"""The section [node]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidegate.cli.settings.field import Between, Duration, Size

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of a node, and its limits."""

    host: str = "127.0.0.1"
    # The host name under which other machines reach the node, if it differs from the listening
    # address.
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
    # The node closes a connection that reads nothing for this long while data waits for it.
    slow_reader_s: Annotated[Duration, Between(1.0, 3600.0)] = msgspec.field(
        default=30.0, name="slow_reader"
    )
    # "auto" lets clients on this machine connect without login until the first user exists.
    login: Literal["auto", "always"] = "auto"
    # How long a consumer may hold a message without renewing its lease.
    delivery_lease_s: Annotated[Duration, Between(0.1, 86400.0)] = msgspec.field(
        default=60.0, name="delivery_lease"
    )
    # Connections that write to the store; each runs one commit at a time.
    writers: Annotated[int, Between(1, 64)] = 1
    # How long the node collects acknowledgements for which no client waits.
    settle_linger_s: Annotated[Duration, Between(0.0, 1.0)] = msgspec.field(
        default=0.05, name="settle_linger"
    )
