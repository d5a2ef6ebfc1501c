"""A message as AMQP carries it: properties and headers, and what of them is ours.

RabbitMQ has no message ids. A put of ours gives one, a number of 63 bits in the property
`message_id`; of anybody else's message the id is a hash of what stays the same when it is
delivered again. How often a message has failed, when it expires and why it was given up stand in
headers, because the queue knows nothing of them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from datetime import datetime
from typing import Any

import msgspec
from aiormq import spec
from pamqp.header import ContentHeader

from tidegate.client.options import Special
from tidegate.core.errors import InvalidValue
from tidegate.core.model import (
    PRIORITY_DEFAULT,
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    Death,
    DeathReason,
    Failure,
)

Properties = spec.Basic.Properties

OURS = "x-tidegate-"
# How often it was delivered and given back, before the message was published as it is.
DELIVERIES = f"{OURS}deliveries"
ERROR = f"{OURS}error"
# It was delivered and given back unbegun.
RELEASED = f"{OURS}released"
# What a put says beside a request: a number by which somebody finds what belongs to it.
CONTEXT = f"{OURS}context"
# It may be somewhere else too: published by a connection that was lost before the confirmation, or
# brought here from another replica by who was stopped in the middle.
RESENT = f"{OURS}resent"
# Milliseconds since 1970.
EXPIRES_AT = f"{OURS}expires-at"
# Of a dead letter: why, from which queue, and when (milliseconds since 1970).
REASON = f"{OURS}reason"
DIED_IN = f"{OURS}queue"
DIED_AT = f"{OURS}died-at"
# Its failures as JSON, the latest last.
FAILURES = f"{OURS}failures"
_FAILURES_MAX = 10
_FAILURE_LENGTH_MAX = 200
# Why the broker has dead-lettered it, in its words.
_BY_THE_BROKER_BECAUSE = {
    "expired": DeathReason.EXPIRED,
    "rejected": DeathReason.REJECTED,
    "maxlen": DeathReason.OVERFLOW,
    "delivery_limit": DeathReason.DELIVERIES,
}
# What the broker adds on a message's way: on another one it would be wrong.
_BY_THE_BROKER = (
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
)
# Where the broker was to send copies: they are there.
_COPIES = ("CC", "BCC")
_DELAY_QUEUE = re.compile(r"\.delay\.\d+\.\d+$")
_PERSISTENT = 2
# Characters, of up to four bytes each.
_LENGTH_THAT_FITS = 10_000
_SHORT_BYTES_MAX = 255
_MILLISECONDS_MAX = 2**32 - 1


def new_message_id() -> int:
    return secrets.randbits(62) + 1


def properties_of(
    message_id: int, special: Special, headers: dict[str, str] | None, now: float
) -> tuple[Properties, float]:
    """The properties of a put, and the seconds by which it is delayed."""
    attributes = special.attributes
    table: dict[str, Any] = dict(headers or {})
    for short in (*table, (attributes and attributes.content_type) or ""):
        if len(short) > _SHORT_BYTES_MAX or len(short.encode()) > _SHORT_BYTES_MAX:
            raise InvalidValue(
                f"a content type and the name of a header have up to {_SHORT_BYTES_MAX} bytes on "
                f"RabbitMQ, {short[:20]!r}… has more"
            )
    delay_s = special.delay_s or 0.0
    ttl_s = special.ttl_s
    if attributes is not None:
        if attributes.deliver_at is not None:
            delay_s = max(attributes.deliver_at - now, 0.0)
        if attributes.expires_at is not None:
            ttl_s = max(attributes.expires_at - now, 0.0)
    if special.context is not None:
        table[CONTEXT] = special.context
    if ttl_s is not None:
        table[EXPIRES_AT] = int((now + ttl_s) * 1e3)
    properties = Properties(
        content_type=None if attributes is None else attributes.content_type,
        headers=table or None,
        delivery_mode=_PERSISTENT,
        priority=special.priority,
        message_id=str(message_id),
        # In a delay queue it would count there.
        expiration=None if ttl_s is None or delay_s else _milliseconds(ttl_s),
    )
    return properties, delay_s


def _milliseconds(seconds: float) -> str:
    return str(min(int(seconds * 1e3), _MILLISECONDS_MAX))


def again(properties: Properties, message_id: int, changes: dict[str, Any]) -> Properties:
    """The same message, to be published once more, with headers of ours changed.

    `message_id`: what it is known by, should it say none itself.
    """
    headers = dict(properties.headers or {})
    for name in (*_BY_THE_BROKER, *_COPIES):
        headers.pop(name, None)
    headers |= {name: value for name, value in changes.items() if value is not None}
    return Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=headers or None,
        delivery_mode=_PERSISTENT,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        message_id=properties.message_id or str(message_id),
        timestamp=properties.timestamp,
        message_type=properties.message_type,
        app_id=properties.app_id,
    )


def header_bytes(properties: Properties) -> int:
    """Of all that goes beside a payload; fewer than that only where it is clear that all fits."""
    table = properties.headers or {}
    if all(isinstance(value, str) for value in table.values()):
        length = sum(map(len, table)) + sum(len(str(value)) for value in table.values())
        if length < _LENGTH_THAT_FITS:
            return length
    return len(ContentHeader(properties=properties).marshal())


def smaller(properties: Properties) -> Properties:
    """Without what its failures said."""
    headers = properties.headers or {}
    properties.headers = {
        name: value for name, value in headers.items() if name not in (ERROR, FAILURES)
    }
    return properties


def resent(properties: Properties) -> Properties:
    """The same message, once more: it may be somewhere already."""
    properties.headers = {**(properties.headers or {}), RESENT: True}
    return properties


def is_resent(properties: Properties) -> bool:
    return RESENT in (properties.headers or {})


def message_id_of(properties: Properties, payload: bytes) -> int:
    text = properties.message_id
    if text and text.isascii() and text.isdigit() and 0 < int(text) < 2**63:
        return int(text)
    return hash63(text.encode() if text else repr(properties.timestamp).encode() + payload)


def hash63(data: bytes) -> int:
    """The same number for the same bytes, everywhere."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def context_of(properties: Properties) -> int | None:
    """By what its reply is found; None: it asks for none."""
    if not properties.reply_to:
        given = (properties.headers or {}).get(CONTEXT)
        return given if isinstance(given, int) else None
    text = properties.correlation_id or ""
    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return int(text)
    return hash63(text.encode())


def delivery_count_of(properties: Properties, *, redelivered: bool) -> int:
    """Deliveries as far as the message knows, this one among them.

    A quorum queue counts those that came back by themselves; a classic one flags them, which is
    one at least.
    """
    headers = properties.headers or {}
    returned = _whole(headers.get("x-delivery-count")) or int(redelivered)
    return _whole(headers.get(DELIVERIES)) + returned + 1


def was_released(properties: Properties) -> bool:
    return bool((properties.headers or {}).get(RELEASED))


def failures_of(properties: Properties) -> list[Failure]:
    text = (properties.headers or {}).get(FAILURES)
    try:
        return msgspec.json.decode(text, type=list[Failure]) if isinstance(text, str) else []
    except msgspec.DecodeError:
        return []


def failures_with(properties: Properties, reason: str, error: str | None) -> str:
    """Its failures and one more, as the header has them: the last few, in a few words."""
    short = error[:_FAILURE_LENGTH_MAX] if error else None
    failures = [*failures_of(properties), Failure(time.time(), reason, short)]
    return msgspec.json.encode(failures[-_FAILURES_MAX:]).decode()


def deaths_of(properties: Properties, message_id: int) -> list[Death]:
    """Of a dead letter: how it came to be one, by our hand or by the broker's."""
    headers: dict[str, Any] = dict(properties.headers or {})
    failures = failures_of(properties)
    deliveries = _whole(headers.get(DELIVERIES))
    if headers.get(REASON) in list(DeathReason):
        at = _whole(headers.get(DIED_AT)) / 1e3
        queue, error = str(headers.get(DIED_IN)), _text_or_none(headers.get(ERROR))
        reason = DeathReason(headers[REASON])
        return [Death(queue, reason, error, deliveries, at, message_id, failures)]
    deaths = headers.get("x-death")
    if not isinstance(deaths, list):
        return []
    # Their latest is first. Delay queues of ours are no deaths.
    return [
        Death(
            str(death.get("queue")),
            _BY_THE_BROKER_BECAUSE[death["reason"]],
            None,
            deliveries + _whole(death.get("count")),
            death["time"].timestamp() if isinstance(death.get("time"), datetime) else 0.0,
            message_id,
            failures,
        )
        for death in reversed(deaths)
        # Anybody can write such a header.
        if isinstance(death, dict)
        and isinstance(death.get("reason"), str)
        and death["reason"] in _BY_THE_BROKER_BECAUSE
        and not _DELAY_QUEUE.search(str(death.get("queue")))
    ]


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int:
    """A count: anybody can write such a header, too, and one below 0 would never be enough."""
    return max(value, 0) if isinstance(value, int) else 0


def user_headers(properties: Properties) -> dict[str, str]:
    """Headers that people gave it, as text."""
    return {
        name: _text(value)
        for name, value in (properties.headers or {}).items()
        if isinstance(value, str | bytes | bytearray | int | float)
        and not name.startswith(OURS)
        and name not in _BY_THE_BROKER
    }


def _text(value: str | bytes | bytearray | float) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)


def priority_of(properties: Properties) -> int:
    priority = properties.priority
    if priority is None:
        return PRIORITY_DEFAULT
    return min(max(priority, PRIORITY_LOWEST), PRIORITY_HIGHEST)


def expires_at_of(properties: Properties) -> float | None:
    at = (properties.headers or {}).get(EXPIRES_AT)
    return at / 1e3 if isinstance(at, int) else None


def is_expired(properties: Properties) -> bool:
    """It expired where the broker does not look: while it was delayed, or after it had failed.

    A dead letter is kept whenever that was: perhaps it is one because of that.
    """
    at = expires_at_of(properties)
    return at is not None and at <= time.time() and not deaths_of(properties, 0)
