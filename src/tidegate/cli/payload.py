"""Payloads for people and programs: text when it is UTF-8, base64 in JSON when it is not."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client.message import Message

_PREVIEW_CHARACTERS = 60


def as_json(message: Message) -> dict[str, Any]:
    """Everything about a message; `payload_base64` instead of `payload` when it is no text."""
    arrived_at = datetime.fromtimestamp(message.arrived_at, UTC)
    known: dict[str, Any] = {
        "message_id": message.message_id,
        "queue": message.queue,
        "sender": message.sender,
        "receiver": message.receiver,
        "context": message.context,
        "priority": message.priority,
        "arrived_at": arrived_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "content_type": message.content_type,
        "headers": message.headers,
        "redelivered": message.redelivered,
        "delivery_count": message.delivery_count,
    }
    try:
        known["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        known["payload_base64"] = base64.b64encode(message.payload).decode()
    return known


def preview(payload: bytes, characters_max: int | None = _PREVIEW_CHARACTERS) -> str:
    """A payload that can do a terminal no harm: control characters escaped, bytes as hex."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        shown = payload if characters_max is None else payload[:characters_max]
        text = f"<{len(payload)} bytes: {shown.hex(' ')}>"
    else:
        keep = "\n\t" if characters_max is None else ""
        text = "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)
    if characters_max is not None and len(text) > characters_max:
        text = text[: characters_max - 1] + "…"
    return text


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def write(payload: bytes, *, newline: bool) -> None:
    """The bytes themselves to stdout, before anything is acknowledged."""
    left = memoryview(payload + b"\n" if newline else payload)
    # With PYTHONUNBUFFERED a write of more than a pipe holds may end early; what is acknowledged
    # must have been written whole.
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()
