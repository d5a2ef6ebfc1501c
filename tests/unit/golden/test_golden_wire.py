"""Packets: numbers, fields, types and order, and the bytes of an example of each."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
from golden_files import Golden
from golden_shapes import shape

from tidegate.core.errors import TidegateError
from tidegate.wire.connection import FRAME_BEFORE_LOGIN_BYTES, Connection, State
from tidegate.wire.frames import HEADER
from tidegate.wire.packet import Request
from tidegate.wire.packets.registry import ANSWERS, PUSHES, REQUESTS

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
        packet = _example(kind)
        sender = Connection(server=not issubclass(kind, Request))
        sender.state = State.IDENTIFIED
        sent = b"".join(map(bytes, sender.send(packet, 0x01020304, [b"body"])))
        yield f"0x{number:02X} {kind.__name__}"
        text = sent.hex()
        yield from (f"    {text[at : at + 90]}" for at in range(0, len(text), 90))


def _example(kind: Any, name: str = "") -> Any:
    """A value of a type: always the same one for the same type and name of a field."""
    if hasattr(kind, "__supertype__"):
        return _example(kind.__supertype__, name)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _example(arguments[0], name)
    if origin in (typing.Union, types.UnionType):
        # Not null, where something else may stand there.
        return _example(next(one for one in arguments if one is not type(None)), name)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_example(one, name) for one in arguments)
    if origin in (list, tuple):
        return origin([_example(arguments[0], name)])
    if origin is dict:
        return {_example(arguments[0], name): _example(arguments[1], name)}
    simple = {bool: True, int: 300 + len(name), float: 0.5, str: f"text of {name}", bytes: b"\x01"}
    if kind in simple:
        return simple[kind]
    assert isinstance(kind, type), kind
    if issubclass(kind, enum.Enum):
        return list(kind)[-1]
    if kind is msgspec.Raw:
        return msgspec.Raw(b"\x01")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    return kind(**{one.name: _example(hints[one.name], one.name) for one in fields})


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
