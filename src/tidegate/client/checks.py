"""What an application hands in, checked at the call: bad use fails there, with a sentence."""

from __future__ import annotations

from tidegate.client.outbox import Special
from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.core.model import PRIORITY_HIGHEST, PRIORITY_LOWEST, Attributes
from tidegate.wire.connection import MESSAGE_BYTES_MAX

# What a node takes as a wait or a lease: 24 days.
SECONDS_MAX = 2_147_483


def checked_payload(payload: object) -> bytes:
    if isinstance(payload, str):
        raise TypeError("a payload is bytes: encode the text, as in text.encode()")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    data = bytes(payload)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")
    return data


def checked_properties(
    receiver: int | None,
    context: int | None,
    priority: int,
    content_type: str | None,
    headers: dict[str, str] | None,
) -> Special:
    """What a message carries beside its payload; a bad value fails alone, not with its batch."""
    if type(priority) is not int or not PRIORITY_LOWEST <= priority <= PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not {priority!r}"
        )
    if receiver is not None and (type(receiver) is not int or not 0 < receiver < 2**31):
        raise InvalidValue(
            f"a receiver is a client's id, not {receiver!r}: `await mq.client_id_of(name)` finds it"
        )
    if context is not None and (type(context) is not int or not -(2**63) <= context < 2**63):
        raise InvalidValue(f"a context is a whole number of 64 bits, not {context!r}")
    if content_type is not None:
        check_text(content_type)
    if headers is not None:
        if not isinstance(headers, dict):
            raise InvalidValue(f"headers are a dict of strings, not {type(headers).__name__}")
        for text in (*headers, *headers.values()):
            check_text(text)
    attributes = None
    if content_type is not None or headers:
        attributes = Attributes(content_type, headers)
    return receiver, context, priority, attributes


def check_text(text: object) -> None:
    """A string that can travel: of characters, not of halves of them."""
    if not isinstance(text, str):
        raise InvalidValue(f"{text!r} is no string")
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise InvalidValue(f"{text!r} cannot be written as UTF-8: {failure.reason}") from None


def check_seconds(name: str, seconds: object, *, at_least: float) -> None:
    if (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        or not at_least <= seconds <= SECONDS_MAX
    ):
        raise InvalidValue(
            f"{name} is in seconds, from {at_least:g} to {SECONDS_MAX}, not {seconds!r}"
        )


def check_count(name: str, count: object) -> None:
    if type(count) is not int or not 1 <= count < 2**31:
        raise InvalidValue(f"{name} is a whole number from 1, not {count!r}")
