"""Reading the stored messages with SQL, without a node."""

from __future__ import annotations

import psycopg

from tidegate.core.replication import logical_name
from tidegate.lab.faults.payload import numbered
from tidegate.lab.history import MessageKey


def stored_messages(url: str) -> list[MessageKey]:
    """Return each stored message: its logical queue, its producer and its number."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        rows = connection.execute(
            "select queue_name, message from message order by message_id"
        ).fetchall()
    return [(logical_name(queue), *numbered(bytes(payload))) for queue, payload in rows]
