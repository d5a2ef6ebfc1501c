"""What an application hands in, checked at the call: bad use fails there, with a sentence."""

from __future__ import annotations

from tidegate.client.outbox import Special
from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.core.model import PRIORITY_HIGHEST, PRIORITY_LOWEST, Attributes
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


def checked_properties(
    receiver: int | None,
    context: int | None,
    priority: int,
    content_type: str | None,
    headers: dict[str, str] | None,
) -> Special:
    if not isinstance(priority, int) or not PRIORITY_LOWEST <= priority <= PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not {priority!r}"
        )
    if receiver is not None and not 0 < receiver < 2**31:
        raise InvalidValue(f"a receiver is a client's id, not {receiver!r}")
    if context is not None and not -(2**63) <= context < 2**63:
        raise InvalidValue(f"a context fits in 64 bits, {context!r} does not")
    if headers is not None and not all(
        isinstance(key, str) and isinstance(value, str) for key, value in headers.items()
    ):
        raise InvalidValue("headers map strings to strings")
    attributes = None
    if content_type is not None or headers:
        attributes = Attributes(content_type, headers)
    return receiver, context, priority, attributes
