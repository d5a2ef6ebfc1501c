"""Limits of a node on memory, connections, message size and time."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a node, filled by the CLI from the configuration."""

    memory_bytes: int = 512 * MIB
    message_bytes_max: int = 16 * MIB
    frame_before_login_bytes: int = 8 * 1024
    connections_max: int = 5000
    connections_per_address_max: int = 5000
    connections_per_user_max: int = 2000
    handshake_s: float = 10.0
    # A session from which nothing came for three heartbeats is closed.
    heartbeat_s: float = 10.0
    # A session whose client has read none of its pending data for this long is closed.
    slow_reader_s: float = 30.0
    # A node that does not renew its lease in this time loses its queues.
    lease_s: float = 3.0
    # How long a consumer may hold a message without renewing its lease.
    delivery_lease_s: float = 60.0
    prefetch_max: int = 100_000
    name_bytes_max: int = 255
    header_count_max: int = 64
    header_bytes_max: int = 16 * 1024
    writers: int = 1
    settle_linger_s: float = 0.05
    # How long the batch numbers of a silent producer are remembered.
    dedup_window_s: float = 3600.0
    drain_s: float = 10.0
