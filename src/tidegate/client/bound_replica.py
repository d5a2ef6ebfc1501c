"""The replica to which this process is bound.

A machine starts workers beside the replica they serve, with this environment variable:

    TIDEGATE_REPLICA=orders#2
"""

from __future__ import annotations

import os

from tidegate.core.errors import InvalidValue
from tidegate.core.replication import REPLICA_MARK

VARIABLE = "TIDEGATE_REPLICA"


def bound_replica(queue: str) -> int | None:
    """Return the replica number that the environment names for `queue`; `None` if none."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    logical, mark, number = name.rpartition(REPLICA_MARK)
    if not mark or not logical or not number.isdigit():
        raise InvalidValue(f"{VARIABLE}={name!r} names no replica, such as orders#2")
    return int(number) if logical == queue else None
