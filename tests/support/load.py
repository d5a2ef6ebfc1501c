"""Load whose every message is written down, so that the checker can judge what became of it.

Acknowledgements are noted as asked for and never as done: RabbitMQ confirms none, and what it was
told just before it was killed it may have forgotten. Ids are left out, for those of an engine need
not grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tidegate
from tidegate.demo.history import (
    CheckResult,
    HistoryWriter,
    check,
    merged,
    numbered,
    numbered_payload,
    read_history,
)


class Load:
    """What producers and consumers of one process saw of a queue."""

    def __init__(self, history: HistoryWriter, queue: str) -> None:
        self._history = history
        self.queue = queue
        # Distinct messages.
        self.confirmed: set[bytes] = set()
        self.unknown: set[bytes] = set()
        # All deliveries, by message.
        self.seen: Counter[bytes] = Counter()
        # Of those acknowledged, as far as anybody knows, since they came last.
        self.let_go: set[bytes] = set()
        self.deliveries = 0

    async def produce(self, mq: Any, producer: str, seqs: Iterable[int]) -> None:
        """Put these, one after the other; what has no answer is not put again."""
        for seq in seqs:
            await self._put(mq, producer, seq)

    async def _put(self, mq: Any, producer: str, seq: int) -> None:
        payload = numbered_payload(producer, seq)
        note = self._history.note
        note("put", "invoke", self.queue, producer, seq, hash_of=payload)
        try:
            await mq.put(self.queue, payload)
        except tidegate.RetryLater:
            self.unknown.add(payload)
            note("put", "info", self.queue, producer, seq)
        else:
            self.confirmed.add(payload)
            note("put", "ok", self.queue, producer, seq)

    @property
    def is_drained(self) -> bool:
        """Whether all that was confirmed has come, and nobody has it in hand."""
        return self.confirmed <= self.let_go

    def delivered(self, message: Any) -> None:
        """Write a delivery down, before anything is done with it."""
        producer, seq = numbered(message.payload)
        self.deliveries += 1
        self.seen[message.payload] += 1
        self.let_go.discard(message.payload)
        self._history.note(
            "deliver",
            "ok",
            self.queue,
            producer,
            seq,
            redelivered=message.redelivered,
            hash_of=message.payload,
        )

    def acknowledges(self, message: Any) -> None:
        """Write an acknowledgement down, before it is tried."""
        producer, seq = numbered(message.payload)
        self.let_go.add(message.payload)
        self._history.note("ack", "invoke", self.queue, producer, seq)


def judged(histories: Iterable[Path]) -> CheckResult:
    """The verdict over a queue that was drained: what nobody let go of is lost."""
    return check(merged([read_history(path) for path in histories]), stored=[])


def assert_nothing_went_wrong(verdict: CheckResult) -> None:
    assert verdict.examples == []
    assert verdict.outcome == "pass", str(verdict)
