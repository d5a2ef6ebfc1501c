"""Python values as PostgreSQL's binary parameters, for the calls that carry messages.

Only the types that the hot path needs. Integer arrays are built as columns in C: a thousand lengths
take about ten microseconds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import msgspec

_ARRAY_HEADER = struct.Struct("!iiiii")
_INT4_OID, _INT8_OID, _FLOAT8_OID = 23, 20, 701
_FOUR = array("i", [4])

int2 = struct.Struct("!h").pack
int4 = struct.Struct("!i").pack
int8 = struct.Struct("!q").pack
float8 = struct.Struct("!d").pack


def int4_array(values: Sequence[int]) -> bytes:
    """Encode int4[] without nulls: element lengths and values alternate."""
    count = len(values)
    cells = array("i", bytes(8 * count))
    cells[0::2] = _FOUR * count
    cells[1::2] = array("i", values)
    cells.byteswap()
    return _ARRAY_HEADER.pack(1, 0, _INT4_OID, count, 1) + cells.tobytes()


def int8_array(values: Sequence[int | None]) -> bytes:
    """Encode int8[], nulls allowed."""
    has_null = 1 if None in values else 0
    cells = [
        b"\xff\xff\xff\xff" if value is None else b"\x00\x00\x00\x08" + int8(value)
        for value in values
    ]
    return _ARRAY_HEADER.pack(1, has_null, _INT8_OID, len(values), 1) + b"".join(cells)


def float8_array(values: Sequence[float | None]) -> bytes:
    """Encode float8[], nulls allowed."""
    has_null = 1 if None in values else 0
    cells = [
        b"\xff\xff\xff\xff" if value is None else b"\x00\x00\x00\x08" + float8(value)
        for value in values
    ]
    return _ARRAY_HEADER.pack(1, has_null, _FLOAT8_OID, len(values), 1) + b"".join(cells)


def json_of(value: object) -> bytes | None:
    """Encode jsonb: format version, then text. None stays None."""
    return None if value is None else b"\x01" + msgspec.json.encode(value)


def multirange_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges [low, high) in PostgreSQL's text form of a multirange."""
    return "{" + ",".join(f"[{low},{high})" for low, high in ranges) + "}"
