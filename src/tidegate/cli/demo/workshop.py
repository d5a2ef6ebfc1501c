"""The user code of the demo: what its workers run, and what they write down.

A worker notes each message before it begins with it, and that it lets go of it when it is done: of
one that is killed the file says what it had, which has to come again, flagged. `<folder>/slow`
names the replica whose worker is to be slow.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

import tidegate
from tidegate.cli.demo.story import (
    ARCHIVE,
    ARCHIVE_S,
    ARCHIVE_SLOWER,
    ARCHIVED_AT_ONCE,
    ORDER_S,
    ORDERS,
    ORDERS_AT_ONCE,
    SLOWER,
)
from tidegate.fleet.worker_process import REPLICA_VARIABLE
from tidegate.lab.faults.payload import numbered
from tidegate.lab.history import HistoryWriter

FOLDER_VARIABLE = "TIDEGATE_DEMO_FOLDER"
HISTORIES = "histories"
SLOW = "slow"
# Between two looks at who is to be slow.
_LOOK_S = 0.2

# What runs of the same program are one group of consumers, whatever their process is called.
orders = tidegate.App(name=f"orders-worker@{os.getpid()}")
archive = tidegate.App(name=f"archive-worker@{os.getpid()}")
slow_archive = tidegate.App(name=f"archive-slow@{os.getpid()}")


class _Notes:
    """The history of this process, begun with its first message."""

    def __init__(self) -> None:
        self._history: HistoryWriter | None = None

    def delivered(self, queue: str, message: tidegate.Message) -> None:
        producer, seq = numbered(message.payload)
        history = self._begun()
        history.note(
            "deliver",
            "ok",
            queue,
            producer,
            seq,
            message_id=message.message_id,
            redelivered=message.redelivered,
            hash_of=message.payload,
            group=message.group,
        )
        # Before it is worked on: whoever is killed takes no word of it along.
        history.flush()

    def done(self, queue: str, message: tidegate.Message) -> None:
        """Nothing is left to do but to acknowledge it."""
        producer, seq = numbered(message.payload)
        history = self._begun()
        history.note("ack", "invoke", queue, producer, seq, message_id=message.message_id)
        history.flush()

    def _begun(self) -> HistoryWriter:
        if self._history is None:
            name = f"worker-{os.getpid()}-{secrets.token_hex(4)}"
            path = _folder() / HISTORIES / f"{name}.history"
            self._history = HistoryWriter(path, name)
        return self._history


class _Slowness:
    """Whether this worker is the slow one, looked up now and then."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._is_slow = False

    @property
    def factor(self) -> float:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            try:
                chosen = (_folder() / SLOW).read_text()
            except OSError:
                chosen = ""
            self._is_slow = bool(chosen) and chosen == os.environ.get(REPLICA_VARIABLE)
        return SLOWER if self._is_slow else 1.0


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


_notes, _slowness = _Notes(), _Slowness()


@orders.worker(ORDERS, concurrency=ORDERS_AT_ONCE)
async def pack(message: tidegate.Message) -> None:
    """An order takes its time, which stands for whatever real ones do."""
    _notes.delivered(ORDERS, message)
    await asyncio.sleep(ORDER_S * _slowness.factor)
    _notes.done(ORDERS, message)


@archive.worker(ARCHIVE, concurrency=ARCHIVED_AT_ONCE, prefetch=ARCHIVED_AT_ONCE)
async def file_away(message: tidegate.Message) -> None:
    """As many at a time as its prefetch lets come."""
    _notes.delivered(ARCHIVE, message)
    await asyncio.sleep(ARCHIVE_S)
    _notes.done(ARCHIVE, message)


@slow_archive.worker(ARCHIVE, concurrency=ARCHIVED_AT_ONCE, prefetch=ARCHIVED_AT_ONCE)
async def file_away_slowly(message: tidegate.Message) -> None:
    """The same, and every message takes longer."""
    _notes.delivered(ARCHIVE, message)
    await asyncio.sleep(ARCHIVE_S * ARCHIVE_SLOWER)
    _notes.done(ARCHIVE, message)
