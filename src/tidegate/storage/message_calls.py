"""The function calls that carry messages, with parameters in PostgreSQL's binary format."""

from __future__ import annotations

from tidegate.core.ports import Publication, Settlement, Target, Write
from tidegate.storage import parameters as p
from tidegate.storage.pipeline import Call, Parameters

PUT = b"select put_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
REMEMBER = b"select remember_dedup($1, $2, $3, $4)"
PUBLISH = b"select publish_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
SETTLE = b"select settle($1, $2, $3, $4, $5)"
ATTEMPTS = b"select note_attempts($1, $2, $3, $4, $5, $6, $7, $8)"
FENCE = b"select fence($1, $2)"
_BINARY = 1
_ALL_BINARY = [_BINARY] * 14


def fence_call(epochs: dict[int, int]) -> Call:
    """Return the call that fails the transaction unless these are the epochs of the queues."""
    parameters: Parameters = (p.int4_array(list(epochs)), p.int8_array(list(epochs.values())))
    return FENCE, parameters, _ALL_BINARY[:2]


def put_call(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        p.int4(segment.queue_id),
        p.int8(write.epoch),
        p.int8(segment.first_id),
        p.int2(segment.priority),
        p.float8(segment.arrived_at),
        p.int4_array(segment.lengths),
        p.int4_array(segment.senders),
        None if segment.receivers is None else p.int4_array(segment.receivers),
        None if segment.contexts is None else p.int8_array(segment.contexts),
        p.json_of(segment.attributes),
        segment.payload,
        p.int8_array(write.producers),
        p.int8_array(write.batches),
        None if segment.due_at is None else p.float8(segment.due_at),
    )
    return PUT, parameters, _ALL_BINARY


def remember_call(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        p.int4(segment.queue_id),
        p.int8(write.epoch),
        p.json_of(write.dedup_ids),
        p.float8(segment.arrived_at),
    )
    return REMEMBER, parameters, _ALL_BINARY[:4]


def publish_call(publication: Publication) -> Call:
    messages, targets = publication.messages, publication.targets
    dones = ",".join(f'"{p.multirange_text(target.done)}"' for target in targets)
    parameters: Parameters = (
        p.int4_array([target.queue_id for target in targets]),
        p.int8_array([target.first_id for target in targets]),
        f"{{{dones}}}".encode(),
        p.int2(messages.priority),
        p.float8(messages.arrived_at),
        p.int4_array(messages.lengths),
        p.int4_array(messages.senders),
        None if messages.receivers is None else p.int4_array(messages.receivers),
        None if messages.contexts is None else p.int8_array(messages.contexts),
        p.json_of(messages.attributes),
        messages.payload,
        p.int8_array(publication.producers),
        p.int8_array(publication.batches),
        None if messages.due_at is None else p.float8(messages.due_at),
    )
    return PUBLISH, parameters, [1, 1, 0, *_ALL_BINARY[:11]]


def remember_at_call(publication: Publication, target: Target) -> Call:
    parameters: Parameters = (
        p.int4(target.queue_id),
        p.int8(target.epoch),
        p.json_of(target.dedup_ids),
        p.float8(publication.messages.arrived_at),
    )
    return REMEMBER, parameters, _ALL_BINARY[:4]


def settle_call(settlement: Settlement) -> Call:
    # Sorted by segment: transactions that settle the same segments in different orders could
    # deadlock.
    partly = dict(sorted(settlement.partly.items()))
    texts = ",".join(f'"{p.multirange_text(done)}"' for done in partly.values())
    parameters: Parameters = (
        p.int4(settlement.queue_id),
        p.int8(settlement.epoch),
        p.int8_array(settlement.finished),
        p.int8_array(list(partly)),
        f"{{{texts}}}".encode(),
    )
    # Multiranges are sent as text: they are few, and their binary format is not worth the code.
    return SETTLE, parameters, [1, 1, 1, 1, 0]


def attempts_call(settlement: Settlement) -> Call:
    attempts = settlement.attempts
    parameters: Parameters = (
        p.int4(settlement.queue_id),
        p.int8(settlement.epoch),
        p.int8_array(settlement.forgotten),
        p.int8_array([first_id for first_id, _ in attempts]),
        p.int4_array([offset for _, offset in attempts]),
        p.int4_array([attempt.failed for attempt in attempts.values()]),
        p.float8_array([attempt.due_at for attempt in attempts.values()]),
        p.json_of([attempt.failures for attempt in attempts.values()]),
    )
    return ATTEMPTS, parameters, _ALL_BINARY[:8]
