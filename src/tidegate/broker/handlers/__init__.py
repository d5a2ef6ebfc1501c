"""Checks of packet fields, made before anything is done, so that a refusal changes nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate.agreements.document import check_agreement
from tidegate.broker.batch import (
    INT4_MAX,
    INT8_MAX,
    check_attributes,
    check_integers,
    check_payload,
    check_priority,
    check_put,
    check_receivers,
)
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    RequiredParameterMissing,
    TooLarge,
    Unavailable,
)
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import check_goal
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Store
from tidegate.core.topology import Scaling, logical_name, scaling_problems
from tidegate.protocol.messages import PutToQueues, Transact

POLICY_MAX = 10**12
# Both sets of control characters, and line separators. Names are shown on terminals, where U+009B
# begins a command as Escape [ does, and in logs and lists.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
JOINT_COUNT_MAX = 1000
# More deliveries than one connection can have. Sums over many ranges still fit into 8 bytes.
TAG_MAX = 2**40
RANGES_MAX = 100_000


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
    check_integers((packet.producer, packet.batch, packet.context), INT8_MAX)
    check_receivers((packet.receiver,))


def check_transact(packet: Transact, body: memoryview, limits: NodeLimits) -> list[memoryview]:
    """Check the puts and acknowledgements of a transaction; return the body of each put."""
    if len(packet.puts) + len(packet.acks) > JOINT_COUNT_MAX:
        raise TooLarge(f"a transaction is over at most {JOINT_COUNT_MAX} queues and consumers")
    if packet.batch < 1:
        raise InvalidValue("batches of a producer count up from 1")
    check_integers((packet.producer, packet.batch), INT8_MAX)
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


def check_id(number: int) -> None:
    check_integers((number,), INT4_MAX)


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


def check_ranges(ranges: list[tuple[int, int]]) -> None:
    """Check ranges of tags, which count from 1. Tags that are not held are no error."""
    if len(ranges) > RANGES_MAX:
        raise TooLarge(f"a packet names at most {RANGES_MAX} ranges of tags, not {len(ranges)}")
    for first, last in ranges:
        if not 1 <= first <= last <= TAG_MAX:
            raise InvalidValue(f"no tags run from {first} to {last}")


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
