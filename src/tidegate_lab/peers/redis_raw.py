"""Redis at its own limit, with pre-encoded commands on a raw socket instead of redis-py.

It sends the same commands as the redis-py contender. The producer builds the XADD commands before
the clock starts, and sends them in large writes as long as the number of unanswered commands
allows. The consumer requests the next batch in the write that acknowledges the last one.
"""

from __future__ import annotations

import io
import socket
from typing import BinaryIO

from tidegate_lab.loadgen.processes import PAYLOAD_BYTES, ConsumerSide, ProducerSide, make_payload

COMMANDS_PER_WRITE = 100
READ_COUNT = 1000
BLOCK_MS = 1000
SOCKET_BUFFER_BYTES = 1 << 20


def produce(side: ProducerSide) -> None:
    """Add all messages; Redis answers each after it has flushed its append-only file."""
    work = side.work
    stream = work.queue.encode()
    commands = [
        _command(b"XADD", stream, b"*", b"p", make_payload(sequence, 0))
        for sequence in range(work.messages)
    ]
    writes = [
        b"".join(commands[start : start + COMMANDS_PER_WRITE])
        for start in range(0, work.messages, COMMANDS_PER_WRITE)
    ]
    del commands
    with socket.create_connection(("127.0.0.1", work.port), timeout=30.0) as connection:
        sent = answered = 0
        side.wait_for_go()
        for write in writes:
            while sent + COMMANDS_PER_WRITE - answered > work.in_flight:
                answered += _count_answers(connection)
            connection.sendall(write)
            sent += COMMANDS_PER_WRITE
        while answered < work.messages:
            answered += _count_answers(connection)
        side.confirmed_all()


def consume(side: ConsumerSide) -> None:
    """Read all messages through a consumer group, and acknowledge and delete each batch."""
    stream = side.work.queue.encode()
    read_more = _command(
        *(b"XREADGROUP", b"GROUP", b"workers", b"worker"),
        *(b"COUNT", b"%d" % READ_COUNT, b"BLOCK", b"%d" % BLOCK_MS, b"STREAMS", stream, b">"),
    )
    with (
        socket.create_connection(("127.0.0.1", side.work.port), timeout=30.0) as connection,
        io.BufferedReader(connection.makefile("rb", 0), SOCKET_BUFFER_BYTES) as answers,
    ):
        connection.sendall(_command(b"XGROUP", b"CREATE", stream, b"workers", b"0", b"MKSTREAM"))
        _expect(answers, b"+OK")
        side.ready()
        connection.sendall(read_more)
        left = side.work.messages
        while left:
            entry_ids = _read_entries(answers, side)
            if not entry_ids:
                connection.sendall(read_more)
                continue
            left -= len(entry_ids)
            connection.sendall(
                _command(b"XACK", stream, b"workers", *entry_ids)
                + _command(b"XDEL", stream, *entry_ids)
                + (read_more if left else b"")
            )
            _expect(answers, b":%d" % len(entry_ids))
            _expect(answers, b":%d" % len(entry_ids))
        side.acknowledged_all()
        connection.sendall(_command(b"DEL", stream))
        _expect(answers, b":1")


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def _count_answers(connection: socket.socket) -> int:
    chunk = connection.recv(SOCKET_BUFFER_BYTES)
    # Every answer is an entry id as a bulk string ("$..."), so dollars count answers. An id
    # contains no dollar.
    if not chunk or b"-ERR" in chunk or b"-OOM" in chunk:
        raise RuntimeError(f"Redis refused: {chunk[:200]!r}")
    return chunk.count(b"$")


def _expect(answers: BinaryIO, expected: bytes) -> None:
    line = answers.readline().rstrip()
    if line != expected:
        raise RuntimeError(f"Redis answered {line[:200]!r} instead of {expected!r}")


def _read_entries(answers: BinaryIO, side: ConsumerSide) -> list[bytes]:
    """Handle the messages of one answer to XREADGROUP and return their entry ids."""
    line = answers.readline()
    if line.startswith(b"*-1"):
        return []
    if not line.startswith(b"*1"):
        raise RuntimeError(f"Redis answered {line[:200]!r}")
    skip = answers.readline
    skip(), skip(), skip()  # The pair's length, and the stream's name with its length.
    entry_ids = []
    for _ in range(int(answers.readline()[1:])):
        skip(), skip()  # The entry's length, and the length of its id.
        entry_ids.append(answers.readline()[:-2])
        skip(), skip(), skip(), skip()  # Field count, field name, and the payload's length.
        side.handle(answers.read(PAYLOAD_BYTES + 2)[:-2])
    return entry_ids
