"""Reading and purging messages in PostgreSQL, and the records of batches and dedup ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec
from psycopg.types.multirange import Multirange

from tidegate.core.model import Attributes, Failure, QueuePolicy
from tidegate.core.ports import LaneSummary
from tidegate.core.segment import Segment


class PostgresMessages(ABC):
    """The part of a PostgreSQL store that reads messages."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    @abstractmethod
    async def _read(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function that may take longer, on a connection beside the catalogue's."""

    async def drop_done(self, queue_id: int, epoch: int) -> bool:
        rows = await self._read("select drop_done(%s, %s)", queue_id, epoch)
        return bool(rows[0][0] == 0)

    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]:
        rows = await self._call("select stored_segments(%s, %s::bigint[])", queue_id, first_ids)
        return {row[0] for row in rows}

    async def lanes(self, queue_id: int) -> list[LaneSummary]:
        return [LaneSummary(*row) for row in await self._read("select * from lanes(%s)", queue_id)]

    async def read_lane(
        self,
        queue_id: int,
        priority: int,
        addressed: bool,
        from_id: int,
        to_id: int,
        count_max: int,
        bytes_max: int,
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_lane(%s, %s::smallint, %s, %s, %s, %s::int, %s)",
            queue_id,
            priority,
            addressed,
            from_id,
            to_id,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def read_between(
        self, queue_id: int, from_id: int, to_id: int, count_max: int, bytes_max: int
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_between(%s, %s, %s, %s::int, %s)",
            queue_id,
            from_id,
            to_id,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def find_segments(
        self,
        queue_id: int,
        from_id: int,
        receiver: int,
        sender: int | None,
        context: int | None,
        priority: int | None,
        count_max: int,
    ) -> list[Segment]:
        rows = await self._read(
            "select * from find_segments(%s, %s, %s, %s, %s, %s::smallint, %s::int)",
            queue_id,
            from_id,
            receiver,
            sender,
            context,
            priority,
            count_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def read_due(
        self, queue_id: int, behind: tuple[float, int], count_max: int, bytes_max: int
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_due(%s, %s, %s, %s::int, %s)",
            queue_id,
            *behind,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def count_due(self, queue_id: int) -> int:
        return int((await self._read("select count_due(%s)", queue_id))[0][0])

    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]:
        rows = await self._read("select * from dedup_ids(%s, %s)", queue_id, newer_than_s)
        return dict(rows)

    async def forget_dedup(self) -> int:
        window_s = QueuePolicy().dedup_window_s
        return int((await self._call("select forget_dedup(%s)", window_s))[0][0])

    async def marks(self, queue_id: int) -> dict[int, list[tuple[int, int]]]:
        rows = await self._read("select * from marks(%s)", queue_id)
        return {producer: _ranges(batches) for producer, batches in rows}

    async def forget_marks(self, older_than_s: float) -> int:
        return int((await self._call("select forget_marks(%s)", older_than_s))[0][0])

    async def purge(self, queue_id: int, epoch: int, below_id: int, kept: list[int]) -> bool:
        rows = await self._read(
            "select purge_queue(%s, %s, %s, %s::bigint[])", queue_id, epoch, below_id, kept
        )
        return bool(rows[0][0] == 0)

    async def free_payloads(self) -> int:
        return int((await self._call("select free_payloads()"))[0][0])


def _segment(queue_id: int, row: tuple[Any, ...]) -> Segment:
    """Return the segment of a row of the type segment_row."""
    attributes, done, attempts = row[7], row[9], row[11]
    segment = Segment(
        queue_id=queue_id,
        first_id=row[0],
        priority=row[1],
        arrived_at=row[2],
        lengths=row[3],
        senders=row[4],
        receivers=row[5],
        contexts=row[6],
        attributes=None
        if attributes is None
        else msgspec.convert(attributes, list[Attributes | None]),
        payload=row[8],
        due_at=row[10],
        reloaded=True,
    )
    for offset, count, due_at, failures in attempts or ():
        segment.remember(offset, count, due_at, msgspec.convert(failures, list[Failure]))
    if done is not None:
        for low, high in _ranges(done):
            segment.mark_done(low, high)
    return segment


def _ranges(multirange: Multirange[int]) -> list[tuple[int, int]]:
    return [(part.lower or 0, part.upper or 0) for part in multirange]
