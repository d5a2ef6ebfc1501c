"""Message payloads in output: UTF-8 text as text, other bytes as hex or base64."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client.message import Message

_PREVIEW_CHARACTERS = 60


def as_json(message: Message) -> dict[str, Any]:
    """Return all fields of a message as JSON values.

    A payload that is not UTF-8 is in `payload_base64` instead of `payload`.
    """
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
    """Return a payload as safe text for a terminal: control characters escaped, bytes as hex.

    None for `characters_max` returns the whole payload and keeps newlines and tabs.
    """
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
    """Write the payload itself to stdout and flush, so that it may then be acknowledged."""
    left = memoryview(payload + b"\n" if newline else payload)
    # With PYTHONUNBUFFERED a write larger than the pipe's capacity may be partial. A message must
    # be written completely before it is acknowledged.
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()
