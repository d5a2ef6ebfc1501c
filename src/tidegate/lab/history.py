"""Histories: the events that clients record outside of the system, for the checker.

Each client process appends JSON lines to a file of its own. Times are CLOCK_MONOTONIC, which all
processes of a machine share, so that the files of a run merge into one history. Most client
processes are never killed and flush their buffer several times a second. A process that the run may
kill, such as a worker, flushes after each event.

An operation begins with `invoke` and ends with `ok`, `fail` or `info`. `fail` means that it did not
happen. `info` means that it may have happened, as after a timeout or a lost connection. A delivery
is a single `ok`.

A client records every acknowledgement before it sends it. An acknowledgement without confirmation
has no second event. The record lets the checker distinguish a handled message from a message that
a consumer only held. A returned message is an `ack` that failed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self

import msgspec

Operation = Literal["put", "deliver", "ack"]
Phase = Literal["invoke", "ok", "fail", "info"]

_FLUSH_BYTES = 64 * 1024


class Event(msgspec.Struct, omit_defaults=True):
    """One line of a history."""

    t: float
    process: str
    op: Operation
    phase: Phase
    queue: str
    producer: str
    seq: int
    priority: int = 5
    # 0 means unknown, as after a put that was sent again and was stored already.
    message_id: int = 0
    epoch: int | None = None
    redelivered: bool = False
    payload_hash: str = ""
    # For a delivery: the message's group, within which order holds for all consumers.
    group: str = ""
    # The number of the delivery in its process, because one message may have several deliveries.
    # An acknowledgement has the number of the delivery that it acknowledges.
    delivery: int = 0

    @property
    def key(self) -> MessageKey:
        return (self.queue, self.producer, self.seq)


# A message: its queue, its producer, and its number at that producer.
MessageKey = tuple[str, str, int]


def payload_hash(payload: bytes) -> str:
    """Return a 64-bit hash of a payload, which detects damage and keeps the lines short."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


class HistoryWriter:
    """Writes the history of one client process."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._process = process
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()

    def note(
        self,
        op: Operation,
        phase: Phase,
        queue: str,
        producer: str,
        seq: int,
        *,
        priority: int = 5,
        message_id: int = 0,
        redelivered: bool = False,
        hash_of: bytes | None = None,
        group: str | None = None,
        delivery: int = 0,
    ) -> None:
        """Append an event with the current time; it stays in the buffer until `flush`."""
        event = Event(
            t=time.monotonic(),
            process=self._process,
            op=op,
            phase=phase,
            queue=queue,
            producer=producer,
            seq=seq,
            priority=priority,
            message_id=message_id,
            redelivered=redelivered,
            payload_hash="" if hash_of is None else payload_hash(hash_of),
            group=group or "",
            delivery=delivery,
        )
        self._buffer += self._encoder.encode(event)
        self._buffer += b"\n"
        if len(self._buffer) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            # One write of whole lines, so that a reader of the growing file rarely sees half a
            # line.
            self._file.write(self._buffer)
            self._buffer.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HistoryFollower:
    """Reads a history while it is being written; each call of `news` returns the new events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Event)

    def news(self) -> list[Event]:
        """Return the events written since the last call; empty if the file does not exist yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


def read_history(path: Path) -> Iterator[Event]:
    """Yield the events of one process in the order in which they happened.

    A last line without a newline is skipped: its process is still writing it, or was killed.
    """
    decoder = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def merged(histories: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """Merge the events of all processes in the order of their times."""
    return merge(*histories, key=attrgetter("t"))
