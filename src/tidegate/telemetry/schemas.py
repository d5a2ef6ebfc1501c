"""Schemas of the recorded rows: each kind has typed columns and a version.

A kind is a folder of the lake, and each file contains the kind's version. Readers ignore files with
an unknown version. A column may be added at the end without a new version. Any other change needs a
new version.

Counts in samples belong to one interval and are not totals. Sums therefore stay correct across
restarts, and an interval that was not recorded is missing instead of being added to the next one.

Durations are sparse histograms with the buckets of `telemetry.meters`. Counts of buckets can be
added over seconds, replicas and nodes, while percentiles cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

KIND_KEY = b"tidegate.kind"
VERSION_KEY = b"tidegate.version"
# The id of a file. Two files with the same id are copies.
FILE_KEY = b"tidegate.file"
# The ids of the files that a compacted file replaces, as a JSON list.
REPLACES_KEY = b"tidegate.replaces"

_AT = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())
_HISTOGRAM = pa.list_(
    pa.struct([pa.field("bucket", pa.int16(), False), pa.field("count", pa.int32(), False)])
)


@dataclass(frozen=True)
class RowKind:
    """One kind of rows."""

    name: str
    version: int
    says: str
    columns: pa.Schema

    def file_metadata(self, file_id: str) -> dict[bytes, bytes]:
        """Return the metadata to store in a file of this kind."""
        return {
            KIND_KEY: self.name.encode(),
            VERSION_KEY: str(self.version).encode(),
            FILE_KEY: file_id.encode(),
        }


@dataclass(frozen=True)
class _OrNull:
    """The type of a nullable column."""

    kind: pa.DataType


def _columns(**types: pa.DataType | _OrNull) -> pa.Schema:
    """Return a schema; columns are not nullable unless marked with `_OrNull`."""
    return pa.schema(
        [
            pa.field(name, kind.kind, True)
            if isinstance(kind, _OrNull)
            else pa.field(name, kind, False)
            for name, kind in types.items()
        ]
    )


QUEUE_SAMPLES = RowKind(
    "queue_samples",
    1,
    "One queue replica in one interval.",
    _columns(
        at=_AT,  # end of the interval
        interval_s=pa.float64(),
        node=_NAME,
        queue=_NAME,
        replica=pa.int32(),
        epoch=pa.int64(),
        # Within the interval.
        put=pa.int64(),
        delivered=pa.int64(),
        acked=pa.int64(),
        returned=pa.int64(),
        redelivered=pa.int64(),
        refused=pa.int64(),
        dead_lettered=pa.int64(),
        dropped=pa.int64(),
        expired=pa.int64(),
        deduplicated=pa.int64(),
        wait_s_sum=pa.float64(),
        service_s_sum=pa.float64(),
        wait=_HISTOGRAM,
        service=_HISTOGRAM,
        # At the end of the interval.
        waiting=pa.int64(),
        waiting_in_store=pa.int64(),
        delayed=pa.int64(),
        unacknowledged=pa.int64(),
        oldest_age_s=pa.float64(),
        resident_bytes=pa.int64(),
        prefetch=pa.int64(),
        # Clients by role: connections with puts in the interval, consumers, waiting reads.
        producers=pa.int32(),
        consumers=pa.int32(),
        readers=pa.int32(),
    ),
)

CONSUMER_SAMPLES = RowKind(
    "consumer_samples",
    1,
    "One consumer in one interval.",
    _columns(
        at=_AT,
        interval_s=pa.float64(),
        node=_NAME,
        queue=_NAME,
        # Consumers of the same role: the queue, and the client's name up to its first "#" or "@".
        group=_NAME,
        client=_NAME,
        consumer=pa.int64(),
        automatic=pa.bool_(),
        delivered=pa.int64(),
        acked=pa.int64(),
        service_s_sum=pa.float64(),
        service=_HISTOGRAM,
        prefetch=pa.int32(),
        unacknowledged=pa.int64(),
        # The plant model y(k+1) = a·y(k) + b·u(k) needs y(k+1), y(k) and u(k). The latter two are
        # null if the previous interval was not recorded.
        arrival_per_s=pa.float64(),
        arrival_before_per_s=_OrNull(pa.float64()),
        prefetch_before=_OrNull(pa.int32()),
    ),
)

NODE_SAMPLES = RowKind(
    "node_samples",
    1,
    "One process in one interval.",
    _columns(
        at=_AT,
        interval_s=pa.float64(),
        node=_NAME,
        role=_NAME,  # node, and later gateway, loop, machine
        member_id=pa.int64(),
        connections=pa.int32(),
        producers=pa.int32(),
        consumers=pa.int32(),
        readers=pa.int32(),
        queues=pa.int32(),
        put=pa.int64(),
        delivered=pa.int64(),
        acked=pa.int64(),
        packets_in=pa.int64(),
        packets_out=pa.int64(),
        commits=pa.int64(),
        committed_messages=pa.int64(),
        commit_s_sum=pa.float64(),
        process_memory_bytes=pa.int64(),
        cpu_s=pa.float64(),
        messages_memory_bytes=pa.int64(),
        # Rows that the recorder dropped.
        rows_dropped=pa.int64(),
    ),
)

REQUESTS = RowKind(
    "requests",
    1,
    "A sampled request of a client that asks one thing at a time (Telesto's table 5.3).",
    _columns(
        at=_AT,  # when the answer was sent
        node=_NAME,
        verb=_NAME,
        # The number of requests this row represents.
        weight=pa.float64(),
        # The phases add up to the total.
        wait_client_us=pa.float64(),
        parse_us=pa.float64(),
        store_us=pa.float64(),
        wait_message_us=pa.float64(),
        respond_us=pa.float64(),
        total_us=pa.float64(),
    ),
)

LIFECYCLES = RowKind(
    "lifecycles",
    1,
    "A sampled message, from its arrival at the node to its end.",
    _columns(
        at=_AT,  # when the message's life ended
        node=_NAME,
        queue=_NAME,
        message_id=pa.int64(),
        weight=pa.float64(),
        payload_bytes=pa.int32(),
        put_at=_AT,
        # The phases of the put: parsed, stored, confirmed. Parsing and confirming are null for a
        # message from a transaction, a topic or another queue, because those are answered as a
        # whole.
        parse_us=_OrNull(pa.float64()),
        store_us=pa.float64(),
        respond_us=_OrNull(pa.float64()),
        # From due to first delivery, and from last delivery to the end. Null if there was no
        # delivery.
        wait_us=_OrNull(pa.float64()),
        service_us=_OrNull(pa.float64()),
        # From arrival to the end.
        response_us=pa.float64(),
        deliveries=pa.int32(),
        outcome=_NAME,  # acked, dead, dropped, expired, moved, purged
    ),
)

EVENTS = RowKind(
    "events",
    1,
    "Something that happened: join, leave, own, disown, scale, boot, halt, violation, …",
    _columns(
        at=_AT,
        node=_NAME,
        event=_NAME,
        # The subject: a node, a queue, a machine or an agreement.
        subject=pa.string(),
        duration_s=_OrNull(pa.float64()),
        value=_OrNull(pa.float64()),
        detail=pa.map_(pa.string(), pa.string()),
    ),
)

DECISIONS = RowKind(
    "decisions",
    1,
    "A decision of a loop, with what it saw and why.",
    _columns(
        at=_AT,
        node=_NAME,
        loop=_NAME,
        service=_NAME,
        law=_NAME,
        inputs=pa.map_(pa.string(), pa.float64()),
        outputs=pa.map_(pa.string(), pa.float64()),
        action=pa.string(),
        reason=pa.string(),
    ),
)

CONTROL_STEPS = RowKind(
    "control_steps",
    1,
    "One step of what steers the prefetch of one consumer, with every term.",
    _columns(
        at=_AT,  # end of its sample
        interval_s=pa.float64(),
        node=_NAME,
        queue=_NAME,
        replica=pa.int32(),
        client=_NAME,
        consumer=pa.int64(),
        mode=_NAME,  # automatic, held, fallback, manual
        # The target, the measured rate, the rate without outliers, and the control error. Null
        # means unknown.
        target_per_s=_OrNull(pa.float64()),
        rate_per_s=_OrNull(pa.float64()),
        used_per_s=_OrNull(pa.float64()),
        error_per_s=_OrNull(pa.float64()),
        # The terms of the controller, their sum, the sum within limits, and the whole number that
        # was set.
        proportional=_OrNull(pa.float64()),
        integral=_OrNull(pa.float64()),
        derivative=_OrNull(pa.float64()),
        wanted=_OrNull(pa.float64()),
        level=pa.float64(),
        output=pa.float64(),
        saturated=_NAME,  # "", low, high
        acked_per_s=pa.float64(),
        # Messages that wait in the consumer, not yet handled; null means unknown.
        held=_OrNull(pa.float64()),
        # The average prefetch of the interval, and whether the queue had fewer messages than that.
        prefetch=pa.float64(),
        starved=pa.bool_(),
        notes=pa.list_(pa.string()),
    ),
)

HTTP_SAMPLES = RowKind(
    "http_samples",
    1,
    "One door of an HTTP service in one interval, and each instance behind it as that door saw it.",
    _columns(
        at=_AT,
        interval_s=pa.float64(),
        node=_NAME,
        service=_NAME,
        # One run of a door process; a restart gives a new value.
        door=_NAME,
        # Null in the row of the door itself. Columns that belong to the other kind of row are 0, so
        # that sums over all rows are correct.
        instance=_OrNull(pa.int64()),
        # For the door: admitted requests, complete answers of instances, and requests without one.
        accepted=pa.int64(),
        answered=pa.int64(),
        refused=pa.int64(),
        # For an instance: requests sent, answered, answered with 500 or above, and without a
        # complete answer.
        sent=pa.int64(),
        served=pa.int64(),
        server_errors=pa.int64(),
        failed=pa.int64(),
        # For the door, as clients see it; for an instance, from sending to the end of the answer.
        response=_HISTOGRAM,
        service_time=_HISTOGRAM,
        # At the end of the interval. For the door: all open requests, and those that wait for an
        # instance. For an instance: requests not yet answered.
        in_flight=pa.int64(),
        waiting=pa.int64(),
        outstanding=pa.int64(),
        # For an instance, from the store; null for the door, and for an instance the store does not
        # know.
        version=_OrNull(pa.int32()),
        weight=_OrNull(pa.float64()),
        concurrency=_OrNull(pa.int32()),
        free_memory_bytes=_OrNull(pa.float64()),
        # Why the instance is ejected from balancing; empty if it is not.
        ejected=pa.string(),
        # For the door: what it cannot do at present; empty if all is well.
        trouble=pa.string(),
        # For the door: its rows that were dropped since its last row.
        rows_dropped=pa.int64(),
    ),
)

HTTP_PROBES = RowKind(
    "http_probes",
    1,
    "A request that a probe made of an HTTP service from outside, and what came of it.",
    _columns(
        at=_AT,  # the end of the request
        node=_NAME,
        service=_NAME,
        # The address probed: a door or an instance. `instance` is null for a door.
        address=_NAME,
        instance=_OrNull(pa.int64()),
        ok=pa.bool_(),
        status=_OrNull(pa.int32()),
        duration_s=pa.float64(),
        # Why the probe failed; empty if it succeeded.
        failure=pa.string(),
    ),
)

HTTP_REQUESTS = RowKind(
    "http_requests",
    1,
    "A sampled request of an HTTP service; never what it asked for, nor what it carried.",
    _columns(
        at=_AT,  # the end of the answer
        node=_NAME,
        service=_NAME,
        door=_NAME,
        # The instance that answered; null for the door itself.
        instance=_OrNull(pa.int64()),
        method=_NAME,
        status=pa.int32(),
        weight=pa.float64(),
        # The phases as measured by the door; they add up to the total.
        wait_door_us=pa.float64(),
        connect_us=pa.float64(),
        server_us=pa.float64(),
        total_us=pa.float64(),
    ),
)

KINDS: dict[str, RowKind] = {
    kind.name: kind
    for kind in (
        QUEUE_SAMPLES,
        CONSUMER_SAMPLES,
        NODE_SAMPLES,
        REQUESTS,
        LIFECYCLES,
        EVENTS,
        DECISIONS,
        CONTROL_STEPS,
        HTTP_SAMPLES,
        HTTP_PROBES,
        HTTP_REQUESTS,
    )
}
