"""The last 15 minutes of one service, in bounded memory, for charts.

The newest three minutes have every point; older ones have each fifth point. Points are packed: a
service takes some tens of kilobytes, 500 services a few tens of megabytes. If a service has more
than 32 replicas, only the newest point contains them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidegate.console.model import Point, ReplicaPoint

FINE_POINTS = 180
COARSE_EVERY = 5
COARSE_POINTS = 144
REPLICAS_KEPT_MAX = 32

_POINT_FIELDS = tuple(name for name in Point.__struct_fields__ if name != "replicas")
_REPLICA_FIELDS = ReplicaPoint.__struct_fields__


class Timeline:
    """The points of one service; the newest is last."""

    def __init__(self) -> None:
        self._fine: deque[bytes] = deque()
        self._coarse: deque[bytes] = deque(maxlen=COARSE_POINTS)
        self._passed = 0
        self.newest: Point | None = None

    def add(self, point: Point) -> None:
        self.newest = point
        self._fine.append(_packed(point))
        if len(self._fine) > FINE_POINTS:
            gone = self._fine.popleft()
            self._passed += 1
            if self._passed % COARSE_EVERY == 0:
                self._coarse.append(gone)

    def points(self) -> list[Point]:
        found = [_unpacked(one) for one in (*self._coarse, *self._fine)]
        if self.newest is not None:
            found[-1] = self.newest
        return found


def _packed(point: Point) -> bytes:
    few = len(point.replicas) <= REPLICAS_KEPT_MAX
    replicas = [
        [getattr(one, name) for name in _REPLICA_FIELDS] for one in (point.replicas if few else [])
    ]
    return msgspec.msgpack.encode([[getattr(point, name) for name in _POINT_FIELDS], replicas])


def _unpacked(packed: bytes) -> Point:
    values, replicas = msgspec.msgpack.decode(packed)
    fields: dict[str, Any] = dict(zip(_POINT_FIELDS, values, strict=True))
    return Point(
        **fields,
        replicas=[ReplicaPoint(**dict(zip(_REPLICA_FIELDS, one, strict=True))) for one in replicas],
    )
