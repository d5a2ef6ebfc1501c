"""Lenient decoding of AMQP fields that pamqp rejects.

RabbitMQ delivers everything that a producer has written: text that is not UTF-8 (old programs write
Latin-1), times in nanoseconds, deeply nested tables. pamqp raises an error for these. Then the
connection closes, the message returns to its queue, and the same happens on the next connection,
without end.

So these decoders take over where pamqp's fail. A text gets replacement characters, an invalid time
becomes None, and headers that are nested too deeply become empty.
"""

from __future__ import annotations

import struct
from typing import Any

from pamqp import decode

_TIME_BYTES = 8
_LENGTH = struct.Struct(">I")


def read_leniently() -> None:
    """Install the decoders in pamqp, for the whole process."""
    decode.METHODS |= {"shortstr": _short_text, "timestamp": _time, "table": _headers}
    decode.TABLE_MAPPING |= {b"T": _time, b"F": _table}


def _short_text(value: bytes) -> tuple[int, str]:
    length = value[0] if value else 0
    if not value or len(value) < 1 + length:
        raise ValueError("a text is cut off")
    return 1 + length, value[1 : 1 + length].decode(errors="replace")


def _time(value: bytes) -> tuple[int, Any]:
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        if len(value) < _TIME_BYTES:
            raise
        return _TIME_BYTES, None


def _headers(value: bytes) -> tuple[int, dict[str, Any]]:
    try:
        return _table(value)
    except RecursionError:
        return _LENGTH.size + _LENGTH.unpack_from(value)[0], {}


def _table(value: bytes) -> tuple[int, dict[str, Any]]:
    try:
        return decode.field_table(value)
    except UnicodeDecodeError:
        return _table_of_strange_names(value)


def _table_of_strange_names(value: bytes) -> tuple[int, dict[str, Any]]:
    offset = _LENGTH.size
    end = offset + _LENGTH.unpack_from(value)[0]
    found: dict[str, Any] = {}
    while offset < end:
        consumed, name = _short_text(value[offset:])
        offset += consumed
        consumed, found[name] = decode.embedded_value(value[offset:])
        offset += consumed
    return end, found
