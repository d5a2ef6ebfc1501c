"""The replica that this process lives with: a machine starts workers beside the replica they serve.

TIDEGATE_REPLICA=orders#2
"""

from __future__ import annotations

import os

from tidegate.core.errors import InvalidValue
from tidegate.core.replication import REPLICA_MARK

VARIABLE = "TIDEGATE_REPLICA"


def bound_replica(queue: str) -> int | None:
    """The number of the replica of a queue that the environment names; None: it names none."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    logical, mark, number = name.rpartition(REPLICA_MARK)
    if not mark or not logical or not number.isdigit():
        raise InvalidValue(f"{VARIABLE}={name!r} names no replica, such as orders#2")
    return int(number) if logical == queue else None
