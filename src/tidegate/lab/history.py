"""What clients saw, written outside the system: the evidence that the checker judges.

One file of JSON lines per client process, append only. Times are CLOCK_MONOTONIC, which all
processes of one machine share, so the files of a run merge into one history. Client processes
are never killed, so a buffer that is flushed several times a second is safe enough; whoever may be
killed flushes what it notes at once.

An operation begins with `invoke` and ends with `ok`, `fail` (it did not happen) or `info` (it may
have happened: a timeout, a lost connection). A delivery is a single `ok`. Every acknowledgement is
noted before it is tried, also one that nobody waits for, which then has no end: by that the checker
tells what somebody is done with from what somebody held. What is given back is an `ack` that
failed.
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
    # 0: not known, as after a resend that turned out to be stored already.
    message_id: int = 0
    epoch: int | None = None
    redelivered: bool = False
    payload_hash: str = ""
    # Of a delivery: the message's group, whose order holds whoever consumes.
    group: str = ""
    # Which of its process's deliveries this is, or acknowledges: one message may have several.
    delivery: int = 0

    @property
    def key(self) -> MessageKey:
        return (self.queue, self.producer, self.seq)


# Which message: its queue, who put it, and the how manieth of that producer it was.
MessageKey = tuple[str, str, int]


def payload_hash(payload: bytes) -> str:
    """Short enough for every line, long enough that no damage goes unseen."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


class HistoryWriter:
    """The history of one client process."""

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
        """Write down what happened just now."""
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
            # One write of whole lines: whoever follows the file never sees half of one for long.
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
    """Reads a history while it is being written: each call gives what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Event)

    def news(self) -> list[Event]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


def read_history(path: Path) -> Iterator[Event]:
    """The events of one process, in the order in which they happened.

    A last line without its end is not an event yet: its writer is at it, or was killed there.
    """
    decoder = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def merged(histories: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """The events of all processes in the order of their times."""
    return merge(*histories, key=attrgetter("t"))
