"""Topics: a message published once goes to every subscription whose filter matches.

A filter names headers, all of which must match. A list of values matches any of them:

    {"region": "eu", "kind": ["order", "refund"]}

matches messages with the header `region` equal to "eu" and the header `kind` equal to one of the
two. No filter, or an empty one, matches every message.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.core.model import Attributes

Filter = dict[str, str | list[str]]
Ranges = list[tuple[int, int]]

FILTER_VALUES_MAX = 256
FILTER_LENGTH_MAX = 16 * 1024


class SubscriptionInfo(msgspec.Struct, array_like=True, frozen=True):
    """A queue that receives the messages published to a topic."""

    queue_id: int
    queue: str
    filter: Filter | None = None
    # False means that it is deleted with the connection that made it.
    durable: bool = True


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    """A topic as the catalogue knows it."""

    topic_id: int
    name: str
    subscriptions: list[SubscriptionInfo] = []


def matches(header_filter: Filter | None, attributes: Attributes | None) -> bool:
    """Return whether a message with these attributes matches a filter."""
    if not header_filter:
        return True
    headers = (attributes.headers if attributes is not None else None) or {}
    for name, wanted in header_filter.items():
        value = headers.get(name)
        if value is None or (value != wanted if isinstance(wanted, str) else value not in wanted):
            return False
    return True


def unmatched(
    header_filter: Filter | None, attributes: Sequence[Attributes | None] | None, count: int
) -> set[int]:
    """Return the offsets of those of `count` messages that do not match the filter."""
    if not header_filter:
        return set()
    if attributes is None:
        return set(range(count))
    return {n for n, each in enumerate(attributes) if not matches(header_filter, each)}


def ranges_of(offsets: set[int]) -> Ranges:
    """Return offsets as ranges [low, high)."""
    ranges: Ranges = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def check_filter(header_filter: object) -> None:
    """Raise `InvalidValue` for a bad filter, and `TooLarge` for one above the limits."""
    if header_filter is None:
        return
    if not isinstance(header_filter, dict):
        raise InvalidValue(f"a filter is a dict of headers, not {type(header_filter).__name__}")
    texts: list[str] = []
    for name, wanted in header_filter.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values or not all(isinstance(text, str) for text in (name, *values)):
            raise InvalidValue(
                f"a filter gives a header's value as a string, or a list of them, not "
                f"{name!r}: {wanted!r}"
            )
        texts += [name, *values]
    if len(texts) > FILTER_VALUES_MAX or sum(map(len, texts)) > FILTER_LENGTH_MAX:
        raise TooLarge(
            f"a filter has at most {FILTER_VALUES_MAX} names and values and {FILTER_LENGTH_MAX} "
            "characters in all"
        )
    if any("\x00" in text for text in texts):
        raise InvalidValue("filters cannot hold NUL characters")
