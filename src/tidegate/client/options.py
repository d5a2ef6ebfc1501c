"""Options of a put, checked at the call, so that a bad value fails only that call."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST, Attributes
from tidegate.protocol.connection import MESSAGE_BYTES_MAX

# The longest wait, lease or delay that a node accepts: 24 days.
SECONDS_MAX = 2_147_483
# The end of the year 9999, which is the limit of the stores' calendars.
WALL_S_MAX = 253_402_300_000
KEY_LENGTH_MAX = 255


class PutOptions(TypedDict, total=False):
    """Keywords of `put`.

    - `receiver`: the id of the only client that may get the message.
    - `context`: a number by which the sender finds the reply, see `Client.request`.
    - `priority`: 1 (lowest) to 10; the default is 5.
    - `content_type`, `headers`: text for the application that reads the message.
    - `delay` (seconds) or `deliver_at` (seconds since 1970): no delivery before that time.
    - `ttl` (seconds) or `expires_at` (seconds since 1970): no delivery after that time.
    - `dedup_id`: only the first message with this id within the queue's window is stored. The
      others are confirmed with id 0.
    - `group`: messages of a group are delivered in order, one at a time.
    - `tenant`: the queue shares its capacity evenly among tenants.
    """

    receiver: int | None
    context: int | None
    priority: int
    content_type: str | None
    headers: dict[str, str] | None
    delay: float | None
    deliver_at: float | None
    ttl: float | None
    expires_at: float | None
    dedup_id: str | None
    group: str | None
    tenant: str | None


class MessageOptions(NamedTuple):
    """The options of one message in the form in which they are sent."""

    receiver: int | None = None
    context: int | None = None
    priority: int = PRIORITY_DEFAULT
    attributes: Attributes | None = None
    delay_s: float | None = None
    ttl_s: float | None = None


DEFAULT_MESSAGE_OPTIONS = MessageOptions()
_NAMES = PutOptions.__annotations__.keys()
_NO_ATTRIBUTES = Attributes()


def checked_options(options: PutOptions) -> MessageOptions:
    """Return the options in the form in which they are sent; raise `InvalidValue` for a bad value.

    An unknown option raises `TypeError`.
    """
    unknown = options.keys() - _NAMES
    if unknown:
        raise TypeError(
            f"a put has no option {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}"
        )
    receiver, context = options.get("receiver"), options.get("context")
    priority = options.get("priority", PRIORITY_DEFAULT)
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
    delay, ttl = options.get("delay"), options.get("ttl")
    if delay is not None:
        check_seconds("delay", delay, at_least=0.0)
    if ttl is not None:
        check_seconds("ttl", ttl, at_least=0.001)
    attributes = _checked_attributes(options)
    if delay is not None and attributes.deliver_at is not None:
        raise InvalidValue("give delay or deliver_at, not both")
    if ttl is not None and attributes.expires_at is not None:
        raise InvalidValue("give ttl or expires_at, not both")
    return MessageOptions(
        receiver,
        context,
        priority,
        None if attributes == _NO_ATTRIBUTES else attributes,
        delay,
        ttl,
    )


def _checked_attributes(options: PutOptions) -> Attributes:
    content_type, headers = options.get("content_type"), options.get("headers")
    if content_type is not None:
        check_text(content_type)
    if headers is not None:
        if not isinstance(headers, dict):
            raise InvalidValue(f"headers are a dict of strings, not {type(headers).__name__}")
        for text in (*headers, *headers.values()):
            check_text(text)
    for name in ("deliver_at", "expires_at"):
        at: Any = options.get(name)
        if at is not None and (
            not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at <= WALL_S_MAX
        ):
            raise InvalidValue(
                f"{name} is a time in seconds since 1970, as of time.time(), not {at!r}"
            )
    for name in ("dedup_id", "group", "tenant"):
        key: Any = options.get(name)
        if key is None:
            continue
        check_text(key)
        if not 0 < len(key) <= KEY_LENGTH_MAX or "\x00" in key:
            raise InvalidValue(f"{name} has from 1 to {KEY_LENGTH_MAX} characters, not {key!r}")
    return Attributes(
        content_type=content_type,
        headers=headers or None,
        group=options.get("group"),
        tenant=options.get("tenant"),
        dedup_id=options.get("dedup_id"),
        deliver_at=options.get("deliver_at"),
        expires_at=options.get("expires_at"),
    )


def check_text(text: object) -> None:
    """Raise `InvalidValue` unless `text` is a string that UTF-8 can encode.

    A string with lone surrogates cannot be sent.
    """
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


# Checks of arguments at the call, so that a bad call fails there with a clear error.


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
