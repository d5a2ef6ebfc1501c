"""The user code of the demo: the handlers of its workers, which record every message.

A worker records each message before it handles it, and again when it is done. If the worker is
killed, its file therefore shows the unfinished messages, which must be delivered again with the
redelivered flag. The file `<folder>/slow` names the replica whose worker handles messages slowly.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

import tidegate
from tidegate.demo.history import HistoryWriter, numbered
from tidegate.demo.scenario import (
    ARCHIVE,
    ARCHIVE_S,
    ARCHIVE_SLOWER,
    ARCHIVED_AT_ONCE,
    ORDER_S,
    ORDERS,
    ORDERS_AT_ONCE,
    SLOWER,
)
from tidegate.fleet.processes import REPLICA_VARIABLE

FOLDER_VARIABLE = "TIDEGATE_DEMO_FOLDER"
HISTORIES = "histories"
SLOW = "slow"
# The time between two reads of the file that names the slow replica.
_SLOW_POLL_S = 0.2

# The part of the name before the @ is equal for all processes of an application, so that they form
# one consumer group.
orders = tidegate.App(name=f"orders-worker@{os.getpid()}")
archive = tidegate.App(name=f"archive-worker@{os.getpid()}")
slow_archive = tidegate.App(name=f"archive-slow@{os.getpid()}")


class _WorkerHistory:
    """The history of this process; the first message creates its file."""

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
        # Before the handler runs, so that a kill does not lose the record.
        history.flush()

    def done(self, queue: str, message: tidegate.Message) -> None:
        """Record that a message was handled and is about to be acknowledged."""
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
    """Whether this worker is the slow one, read from the file from time to time."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._is_slow = False

    @property
    def factor(self) -> float:
        now = time.monotonic()
        if now - self._looked_at >= _SLOW_POLL_S:
            self._looked_at = now
            try:
                chosen = (_folder() / SLOW).read_text()
            except OSError:
                chosen = ""
            self._is_slow = bool(chosen) and chosen == os.environ.get(REPLICA_VARIABLE)
        return SLOWER if self._is_slow else 1.0


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


_notes, _slowness = _WorkerHistory(), _Slowness()


@orders.worker(ORDERS, concurrency=ORDERS_AT_ONCE)
async def pack(message: tidegate.Message) -> None:
    """Handle an order, with a sleep in place of real work."""
    _notes.delivered(ORDERS, message)
    await asyncio.sleep(ORDER_S * _slowness.factor)
    _notes.done(ORDERS, message)


@archive.worker(ARCHIVE, concurrency=ARCHIVED_AT_ONCE, prefetch=ARCHIVED_AT_ONCE)
async def file_away(message: tidegate.Message) -> None:
    """Handle a message of the archive; the prefetch limits the concurrency."""
    _notes.delivered(ARCHIVE, message)
    await asyncio.sleep(ARCHIVE_S)
    _notes.done(ARCHIVE, message)


@slow_archive.worker(ARCHIVE, concurrency=ARCHIVED_AT_ONCE, prefetch=ARCHIVED_AT_ONCE)
async def file_away_slowly(message: tidegate.Message) -> None:
    """Handle a message of the archive, with a longer sleep."""
    _notes.delivered(ARCHIVE, message)
    await asyncio.sleep(ARCHIVE_S * ARCHIVE_SLOWER)
    _notes.done(ARCHIVE, message)
