"""Checks of packet fields, made before anything is done, so that a refusal changes nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sized
from contextlib import asynccontextmanager

from tidegate.agreements.document import check_agreement
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    RequiredParameterMissing,
    TooLarge,
    Unavailable,
)
from tidegate.core.model import (
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    Attributes,
    DeathReason,
    QueuePolicy,
)
from tidegate.core.prefetch import check_goal
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Store
from tidegate.core.topology import Scaling, logical_name, scaling_problems
from tidegate.protocol.messages import PutMessages, PutToQueues, Redrive, Transact

BATCH_COUNT_MAX = 100_000
ERROR_LENGTH_MAX = 4000
KEY_LENGTH_MAX = 255
# The longest wait or lease: 24 days.
DELAY_S_MAX = 2**31 / 1e3
# The last second of the year 9999; the store's calendar ends there.
WALL_S_MAX = 253_402_300_000
INT4_MAX = 2**31 - 1
INT8_MAX = 2**63 - 1
POLICY_MAX = 10**12
# Both sets of control characters, and line separators. Names are shown on terminals, where U+009B
# begins a command as Escape [ does, and in logs and lists.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
JOINT_COUNT_MAX = 1000
# More deliveries than one connection can have. Sums over many ranges still fit into 8 bytes.
TAG_MAX = 2**40
RANGES_MAX = 100_000


def check_put(packet: PutMessages, body_bytes: int, limits: NodeLimits) -> None:
    """Check that the columns of a batch fit each other and its body."""
    lengths = packet.lengths
    count = len(lengths)
    if not count:
        raise RequiredParameterMissing("a batch needs at least one message")
    if count > BATCH_COUNT_MAX:
        raise TooLarge(f"a batch has at most {BATCH_COUNT_MAX} messages, not {count}")
    if min(lengths) < 0 or sum(lengths) != body_bytes:
        raise InvalidValue(f"lengths add up to {sum(lengths)}, the body has {body_bytes} bytes")
    check_payload(max(lengths), limits)
    if packet.batch < 1:
        raise InvalidValue("batches of a producer count up from 1")
    _check_column(packet.priorities, count, may_be_one=True)
    check_priority(min(packet.priorities), max(packet.priorities))
    _check_integers((packet.producer, packet.batch), INT8_MAX)
    if packet.receivers is not None:
        _check_column(packet.receivers, count, may_be_one=True)
        _check_receivers(packet.receivers)
    if packet.contexts is not None:
        _check_column(packet.contexts, count)
        _check_integers(packet.contexts, INT8_MAX)
    if packet.attributes is not None:
        _check_column(packet.attributes, count)
        for attributes in packet.attributes:
            check_attributes(attributes, limits)
    for column, least in ((packet.delays_s, 0.0), (packet.ttls_s, 0.0)):
        if column is not None:
            _check_column(column, count)
            for seconds in column:
                if seconds is not None and not least <= seconds <= DELAY_S_MAX:
                    raise InvalidValue(
                        f"delays and times to live run from {least:g} to {DELAY_S_MAX:.0f} "
                        f"seconds, not {seconds}"
                    )


def check_queue_count(queue_ids: list[int]) -> None:
    if len(queue_ids) > JOINT_COUNT_MAX:
        raise TooLarge(f"one put goes to at most {JOINT_COUNT_MAX} queues, not {len(queue_ids)}")


def check_put_to_queues(packet: PutToQueues, body_bytes: int, limits: NodeLimits) -> None:
    """Check a put of one message to several queues."""
    if not packet.queue_ids:
        raise RequiredParameterMissing("name at least one queue")
    check_queue_count(packet.queue_ids)
    if packet.batch < 1:
        raise InvalidValue("batches of a producer count up from 1")
    check_payload(body_bytes, limits)
    check_priority(packet.priority, packet.priority)
    check_attributes(packet.attributes, limits)
    _check_integers((packet.producer, packet.batch, packet.context), INT8_MAX)
    _check_receivers((packet.receiver,))


def check_transact(packet: Transact, body: memoryview, limits: NodeLimits) -> list[memoryview]:
    """Check the puts and acknowledgements of a transaction; return the body of each put."""
    if len(packet.puts) + len(packet.acks) > JOINT_COUNT_MAX:
        raise TooLarge(f"a transaction is over at most {JOINT_COUNT_MAX} queues and consumers")
    if packet.batch < 1:
        raise InvalidValue("batches of a producer count up from 1")
    _check_integers((packet.producer, packet.batch), INT8_MAX)
    for ack in packet.acks:
        check_ranges(ack.ranges)
    if len({put.queue_id for put in packet.puts}) < len(packet.puts):
        raise InvalidValue("a transaction has one batch for each queue it puts to")
    bodies = []
    for put in packet.puts:
        put.producer, put.batch, put.after = packet.producer, packet.batch, None
        if min(put.lengths, default=0) < 0:
            raise InvalidValue("a length is negative")
        size = sum(put.lengths)
        bodies.append(body[:size])
        body = body[size:]
        check_put(put, len(bodies[-1]), limits)
    if len(body):
        raise InvalidValue(f"the body has {len(body)} bytes more than the puts say")
    return bodies


def _check_column(column: Sized, count: int, *, may_be_one: bool = False) -> None:
    if len(column) != count and not (may_be_one and len(column) == 1):
        raise InvalidValue(f"a column has {len(column)} entries for {count} messages")


def _check_integers(values: Iterable[int | None], largest: int) -> None:
    """Raise `InvalidValue` for integers that the store's columns cannot hold."""
    for number in values:
        if number is not None and not -largest - 1 <= number <= largest:
            raise InvalidValue(f"{number} is too large: at most {largest}")


def _check_receivers(receivers: Iterable[int | None]) -> None:
    for receiver in receivers:
        if receiver is not None and not 0 < receiver <= INT4_MAX:
            raise InvalidValue(f"a receiver is a client's id, not {receiver}")


def check_id(number: int) -> None:
    _check_integers((number,), INT4_MAX)


def check_context(context: int) -> None:
    _check_integers((context,), INT8_MAX)


def check_payload(payload_bytes: int, limits: NodeLimits) -> None:
    if payload_bytes > limits.message_bytes_max:
        raise TooLarge(
            f"a message of {payload_bytes} bytes exceeds the limit of {limits.message_bytes_max}"
        )


def check_priority(lowest: int, highest: int) -> None:
    if lowest < PRIORITY_LOWEST or highest > PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not "
            f"{lowest if lowest < PRIORITY_LOWEST else highest}"
        )


def check_attributes(attributes: Attributes | None, limits: NodeLimits) -> None:
    if attributes is None:
        return
    headers = attributes.headers or {}
    texts = [attributes.content_type or "", *headers, *headers.values()]
    if len(headers) > limits.header_count_max or sum(map(len, texts)) > limits.header_bytes_max:
        raise TooLarge(
            f"headers are limited to {limits.header_count_max} and {limits.header_bytes_max} "
            "characters in all"
        )
    keys = [attributes.group, attributes.tenant, attributes.dedup_id]
    if any("\x00" in text for text in (*texts, *filter(None, keys))):
        raise InvalidValue("headers, content types and keys cannot hold NUL characters")
    for key in keys:
        if key is not None and not 0 < len(key) <= KEY_LENGTH_MAX:
            raise InvalidValue(
                f"group, tenant and dedup id have from 1 to {KEY_LENGTH_MAX} characters"
            )
    for at in (attributes.deliver_at, attributes.expires_at):
        if at is not None and not 0 <= at <= WALL_S_MAX:
            raise InvalidValue(f"times are in seconds since 1970, not {at}")
    if attributes.deaths is not None:
        raise InvalidValue("deaths are written by nodes only")


def check_name(name: str, limits: NodeLimits) -> str:
    """Check the name of a client or a queue, and return it."""
    if not name or not name.strip():
        raise RequiredParameterMissing("a name must not be empty")
    if len(name) > limits.name_bytes_max:
        raise TooLarge(f"a name has at most {limits.name_bytes_max} characters")
    if _CONTROL.search(name):
        raise InvalidValue("a name cannot hold control characters")
    if name.startswith("#"):
        raise InvalidValue("a name cannot begin with #: #7 means the one with id 7")
    return name


def check_queue_name(name: str, limits: NodeLimits) -> str:
    """Check the name of a new queue, and return it."""
    check_name(name, limits)
    if logical_name(name) != name:
        raise InvalidValue(
            f"a queue's name cannot end in # and digits: {name!r} would be a replica of "
            f"{logical_name(name)!r}"
        )
    return name


def check_scaling(scaling: Scaling, queue: str) -> None:
    """Check scaling settings and their agreement; the error names each wrong setting."""
    if wrong := scaling_problems(scaling):
        raise InvalidValue("; ".join(wrong))
    check_agreement(scaling, queue)


def check_prefetch(prefetch: int, limits: NodeLimits, *, at_least: int = 1) -> None:
    if not at_least <= prefetch <= limits.prefetch_max:
        raise InvalidValue(
            f"prefetch runs from {at_least} to {limits.prefetch_max}, not {prefetch}"
        )


def check_wait(wait_ms: int, lease_ms: int | None) -> None:
    if not 0 <= wait_ms <= INT4_MAX or not 0 < (lease_ms or 1) <= INT4_MAX:
        raise InvalidValue("waits and leases are counted in milliseconds, up to 24 days")


def check_ranges(ranges: list[tuple[int, int]]) -> None:
    """Check ranges of tags, which count from 1. Tags that are not held are no error."""
    if len(ranges) > RANGES_MAX:
        raise TooLarge(f"a packet names at most {RANGES_MAX} ranges of tags, not {len(ranges)}")
    for first, last in ranges:
        if not 1 <= first <= last <= TAG_MAX:
            raise InvalidValue(f"no tags run from {first} to {last}")


def check_id_ranges(ranges: list[tuple[int, int]]) -> None:
    """Check ranges of message ids, which count from 1."""
    if len(ranges) > RANGES_MAX:
        raise TooLarge(f"a packet names at most {RANGES_MAX} ranges of ids, not {len(ranges)}")
    for first, last in ranges:
        if not 1 <= first <= last <= INT8_MAX:
            raise InvalidValue(f"no ids run from {first} to {last}")


def check_policy(policy: QueuePolicy, queue: str, limits: NodeLimits) -> None:
    """Check the numbers of a policy; the error names the wrong one."""
    if policy.dead_letter == queue:
        raise InvalidValue(f"queue {queue!r} cannot keep its own dead letters: name another")
    for field, lowest in (
        ("lease_s", 0.05),
        ("deliveries_max", 0),
        ("retry_first_s", 0),
        ("retry_factor", 1),
        ("retry_max_s", 0),
        ("retry_jitter", 0),
        ("ttl_s", 0.001),
        ("dedup_window_s", 0),
        ("ageing_s", 0),
        ("length_max", 1),
        ("bytes_max", 1),
    ):
        value = getattr(policy, field)
        if value is not None and not lowest <= value <= POLICY_MAX:
            raise InvalidValue(f"{field} runs from {lowest} to {POLICY_MAX}, not {value}")
    if policy.retry_jitter > 1:
        raise InvalidValue(f"retry_jitter is a part of 1, not {policy.retry_jitter}")
    if policy.dead_letter:
        check_queue_name(policy.dead_letter, limits)
    if policy.prefetch is not None:
        check_goal(policy.prefetch)
        check_prefetch(policy.prefetch.high, limits)


def check_error(error: str | None) -> None:
    if error is not None and (len(error) > ERROR_LENGTH_MAX or "\x00" in error):
        raise InvalidValue(f"an error has at most {ERROR_LENGTH_MAX} characters, none of them NUL")


def check_redrive(packet: Redrive, limits: NodeLimits) -> None:
    if packet.to is not None:
        check_name(packet.to, limits)
    if packet.limit is not None and packet.limit < 1:
        raise InvalidValue(f"limit must be at least 1, not {packet.limit}")
    if packet.reason is not None and packet.reason not in list(DeathReason):
        raise InvalidValue(f"reason is one of {', '.join(DeathReason)}, not {packet.reason!r}")


# Requests that must not be repeated when the store has not answered.
#
# Clients repeat every request after `Unavailable`, since it says that the node has done nothing.
# `Unavailable` from a store says that the result is not known. So a handler whose repetition would
# have another result, such as the creation of a queue, answers `IoFailure` then.


@asynccontextmanager
async def unknown_outcome(store: Store) -> AsyncIterator[None]:
    """Turn `Unavailable` from a change in the store into `IoFailure`.

    A read comes first. If the store is away, it raises `Unavailable` before the change, and clients
    repeat the request until the store is back.
    """
    await store.find_client(0, None)
    try:
        yield
    except Unavailable as failure:
        raise IoFailure(f"{failure}; the outcome is not known") from None
