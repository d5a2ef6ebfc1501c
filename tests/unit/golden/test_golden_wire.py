"""Packets: numbers, fields, types and order, and the bytes of an example of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from golden_files import Golden
from golden_shapes import example, shape

from tidegate.core.errors import TidegateError
from tidegate.protocol.connection import (
    ANSWERS,
    FRAME_BEFORE_LOGIN_BYTES,
    HEADER,
    PUSHES,
    REQUESTS,
    ProtocolConnection,
    ProtocolState,
)
from tidegate.protocol.packet import Request

EVERY: dict[int, Any] = dict(sorted({**REQUESTS, **ANSWERS, **PUSHES}.items()))


def test_packets_are_as_they_were(golden: Golden) -> None:
    golden("wire/packets.txt", _packets())


def test_bytes_of_packets_are_as_they_were(golden: Golden) -> None:
    golden("wire/bytes.txt", _examples())


def test_frames_and_codes_of_errors_are_as_they_were(golden: Golden) -> None:
    golden("wire/frames.txt", [*_frames(), "", *_codes()])


def _packets() -> Iterator[str]:
    for number, kind in EVERY.items():
        yield f"0x{number:02X} {kind.__name__}: {_way(number)}"
        yield from (f"    {line}" for line in shape(kind) if line != ".: no fields")


def _way(number: int) -> str:
    if number in PUSHES:
        return "push"
    if number in ANSWERS:
        return "answer"
    kind = REQUESTS[number]
    right = "-" if kind.right is None else kind.right.value
    early = "before login" if kind.before_login else "-"
    early = "before identification" if kind.before_identification and early == "-" else early
    return f"request, answer 0x{kind.answer.method:02X}, mode {kind.mode.value}, {right}, {early}"


def _examples() -> Iterator[str]:
    for number, kind in EVERY.items():
        packet = example(kind)
        sender = ProtocolConnection(server=not issubclass(kind, Request))
        sender.state = ProtocolState.IDENTIFIED
        sent = b"".join(map(bytes, sender.send(packet, 0x01020304, [b"body"])))
        yield f"0x{number:02X} {kind.__name__}"
        text = sent.hex()
        yield from (f"    {text[at : at + 90]}" for at in range(0, len(text), 90))


def _frames() -> Iterator[str]:
    yield f"header {HEADER.format}, frames before login {FRAME_BEFORE_LOGIN_BYTES} bytes at most"


def _codes() -> list[str]:
    """Errors that have a number on the wire."""
    found = {one.code: one for one in _below(TidegateError) if one.__dict__.get("code")}
    return [
        f"{code} {kind.name}: the connection {'stays' if kind.connection_survives else 'closes'}"
        for code, kind in sorted(found.items())
    ]


def _below(kind: type[TidegateError]) -> Iterator[type[TidegateError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
