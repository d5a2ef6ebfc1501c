"""Messages for display: as text, else in hexadecimal, and only the beginning of a large one."""

from __future__ import annotations

import re

from tidegate.client.message import Message
from tidegate.console.model import MessageView

TEXT_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
# A regular expression, because a search checks thousands of texts, and a Python loop over their
# characters would block all users.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def message_view(message: Message) -> MessageView:
    payload = bytes(message.payload)
    text = _text(payload[:TEXT_BYTES_MAX], is_cut=len(payload) > TEXT_BYTES_MAX)
    shown = TEXT_BYTES_MAX if text is not None else HEX_BYTES_MAX
    death = message.deaths[-1] if message.deaths else None
    reason = ""
    if death is not None:
        reason = death.reason.value
        if death.error:
            reason += f": {death.error}"
        elif death.failures and death.failures[-1].error:
            reason += f": {death.failures[-1].error}"
        elif death.failures:
            reason += f": {death.failures[-1].reason}"
    return MessageView(
        message_id=message.message_id,
        at=message.arrived_at,
        priority=message.priority,
        size_bytes=len(payload),
        text=text,
        payload_hex=payload[:HEX_BYTES_MAX].hex() if text is None else None,
        truncated=len(payload) > shown,
        headers=dict(message.headers),
        delivery_count=message.delivery_count if death is None else death.deliveries,
        reason=reason,
        origin="" if death is None else death.queue,
    )


def fits(message: MessageView, wanted: str) -> bool:
    """Return whether a message contains a text in any displayed part."""
    if not wanted:
        return True
    lowered = wanted.lower()
    texts = (message.text or message.payload_hex or "", message.reason, message.origin)
    if any(lowered in one.lower() for one in texts) or wanted == str(message.message_id):
        return True
    return any(lowered in f"{key}: {value}".lower() for key, value in message.headers.items())


def _text(payload: bytes, *, is_cut: bool) -> str | None:
    """Decode UTF-8 without control characters; None if it is something else.

    If the payload was cut, an incomplete last character is dropped.
    """
    # At most the last three bytes belong to an incomplete character.
    for end in range(len(payload), max(len(payload) - 4, -1), -1) if is_cut else [len(payload)]:
        try:
            text = payload[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None
