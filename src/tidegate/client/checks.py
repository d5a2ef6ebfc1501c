"""Checks of arguments at the call, so that a bad call fails there with a clear error."""

from __future__ import annotations

from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.wire.connection import MESSAGE_BYTES_MAX


def checked_payload(payload: object) -> bytes:
    if isinstance(payload, str):
        raise TypeError("a payload is bytes: encode the text, as in text.encode()")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    data = bytes(payload)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")
    return data


def check_count(name: str, count: object) -> None:
    if type(count) is not int or not 1 <= count < 2**31:
        raise InvalidValue(f"{name} is a whole number from 1, not {count!r}")
