"""Storing and settling messages in PostgreSQL.

Connections in pipeline mode carry the calls: some for puts, one for acknowledgements, and a few for
transactions. A put therefore never waits for deletions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidegate.core.errors import StaleEpoch
from tidegate.core.ports import Publication, Settlement, Write
from tidegate.storage.message_calls import (
    ATTEMPTS,
    FENCE,
    PUBLISH,
    PUT,
    REMEMBER,
    SETTLE,
    attempts_call,
    fence_call,
    publish_call,
    put_call,
    remember_at_call,
    remember_call,
    settle_call,
)
from tidegate.storage.pipeline import PipelineConnection

_TRANSACTORS = 4
_STORED = (b"\x00\x00\x00\x00", None)

Committed = Callable[[list[bool] | Exception], None]


class PostgresCommits:
    """The part of a PostgreSQL store that writes messages."""

    def __init__(self, url: str, *, writers: int = 1) -> None:
        # Usually one for each writer: what a writer submits is stored in that order.
        self._putters = [PipelineConnection(url, (PUT, REMEMBER)) for _ in range(writers)]
        self._settler = PipelineConnection(url, (SETTLE, ATTEMPTS))
        self._settler_lock = asyncio.Lock()
        # Several, opened when needed: concurrent transactions share a flush.
        statements = (FENCE, PUT, REMEMBER, PUBLISH, SETTLE, ATTEMPTS)
        self._transactors = [PipelineConnection(url, statements) for _ in range(_TRANSACTORS)]

    def _close_pipelines(self) -> None:
        for pipeline in (*self._putters, self._settler, *self._transactors):
            pipeline.close()

    def submit(self, writes: Sequence[Write], done: Committed, *, writer: int = 0) -> None:
        calls = [put_call(write) for write in writes]
        calls += [remember_call(write) for write in writes if write.dedup_ids]

        def finished(outcome: list[bytes | None] | Exception) -> None:
            if isinstance(outcome, Exception):
                done(outcome)
            else:
                done([value in _STORED for value in outcome[: len(writes)]])

        self._putters[writer % len(self._putters)].submit(calls, finished)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        calls = [settle_call(settlement) for settlement in settlements]
        calls += [attempts_call(each) for each in settlements if each.attempts or each.forgotten]
        async with self._settler_lock:
            values = await self._settler.call(calls)
        return [value in _STORED for value in values[: len(settlements)]]

    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool:
        epochs = {write.segment.queue_id: write.epoch for write in writes}
        epochs |= {settlement.queue_id: settlement.epoch for settlement in settlements}
        targets = [target for publication in publications for target in publication.targets]
        epochs |= {target.queue_id: target.epoch for target in targets}
        calls = [fence_call(epochs)]
        calls += [put_call(write) for write in writes]
        calls += [remember_call(write) for write in writes if write.dedup_ids]
        for publication in publications:
            calls.append(publish_call(publication))
            calls += [remember_at_call(publication, t) for t in publication.targets if t.dedup_ids]
        # Sorted by queue, as all settlements are: different orders could deadlock.
        ordered = sorted(settlements, key=lambda settlement: settlement.queue_id)
        calls += [settle_call(settlement) for settlement in ordered]
        calls += [attempts_call(each) for each in ordered if each.attempts or each.forgotten]
        try:
            await min(self._transactors, key=lambda each: each.pending).call(calls)
        except StaleEpoch:
            return False
        return True
