"""What bounds a node. Everything has a bound."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node; the CLI fills them from the configuration."""

    memory_bytes: int = 512 * MIB
    message_bytes_max: int = 16 * MIB
    frame_before_login_bytes: int = 8 * 1024
    connections_max: int = 5000
    connections_per_address_max: int = 5000
    connections_per_user_max: int = 2000
    handshake_s: float = 10.0
    # A connection that is silent for three heartbeats is gone.
    heartbeat_s: float = 10.0
    # One that reads nothing for so long while there is something for it, too.
    slow_reader_s: float = 30.0
    # A member that does not renew within its lease loses its queues.
    lease_s: float = 3.0
    # How long a consumer may hold a message without a sign of life.
    delivery_lease_s: float = 60.0
    prefetch_max: int = 100_000
    name_bytes_max: int = 255
    header_count_max: int = 64
    header_bytes_max: int = 16 * 1024
    writers: int = 1
    settle_linger_s: float = 0.05
    # Batches of producers are remembered this long.
    dedup_window_s: float = 3600.0
    drain_s: float = 10.0
