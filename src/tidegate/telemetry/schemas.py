"""What is recorded: every kind of row, typed and with a version.

A kind is a folder of the lake; its version stands in each of its files, and readers leave out what
they do not know. A column may be added at the end without a new version; anything else needs one.

Counts of samples are those of one interval, not totals: what a reader adds up stays right across
restarts, and a second that was not recorded is missing rather than smeared over its neighbours.
Durations come as sparse histograms, the buckets those of `telemetry.histogram`: exact counts, which
add up over seconds, replicas and nodes, where percentiles do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

KIND_KEY = b"tidegate.kind"
VERSION_KEY = b"tidegate.version"
# Who a file is: the same twice is one file and its copy.
FILE_KEY = b"tidegate.file"
# Which files a compacted one stands for, a JSON list.
REPLACES_KEY = b"tidegate.replaces"

_AT = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())
_HISTOGRAM = pa.list_(
    pa.struct([pa.field("bucket", pa.int16(), False), pa.field("count", pa.int32(), False)])
)


@dataclass(frozen=True)
class Kind:
    """One kind of rows."""

    name: str
    version: int
    says: str
    columns: pa.Schema

    def file_metadata(self, file_id: str) -> dict[bytes, bytes]:
        """What a file of this kind says of itself."""
        return {
            KIND_KEY: self.name.encode(),
            VERSION_KEY: str(self.version).encode(),
            FILE_KEY: file_id.encode(),
        }


@dataclass(frozen=True)
class _OrNull:
    """The type of a column that a row may leave empty."""

    kind: pa.DataType


def _columns(**types: pa.DataType | _OrNull) -> pa.Schema:
    """Columns that are always there, but for those that say otherwise."""
    return pa.schema(
        [
            pa.field(name, kind.kind, True)
            if isinstance(kind, _OrNull)
            else pa.field(name, kind, False)
            for name, kind in types.items()
        ]
    )


QUEUE_SAMPLES = Kind(
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
        # At its end.
        waiting=pa.int64(),
        waiting_in_store=pa.int64(),
        delayed=pa.int64(),
        unacknowledged=pa.int64(),
        oldest_age_s=pa.float64(),
        resident_bytes=pa.int64(),
        prefetch=pa.int64(),
        # Clients by role: connections that put within it, subscriptions, reads that wait.
        producers=pa.int32(),
        consumers=pa.int32(),
        readers=pa.int32(),
    ),
)

CONSUMER_SAMPLES = Kind(
    "consumer_samples",
    1,
    "One consumer in one interval.",
    _columns(
        at=_AT,
        interval_s=pa.float64(),
        node=_NAME,
        queue=_NAME,
        # Consumers that do the same: the queue, and the client's name up to its first "#" or "@".
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
        # The plant y(k+1) = a·y(k) + b·u(k): y(k+1), y(k) and u(k). The latter two are null when
        # the interval before was not recorded.
        arrival_per_s=pa.float64(),
        arrival_before_per_s=_OrNull(pa.float64()),
        prefetch_before=_OrNull(pa.int32()),
    ),
)

NODE_SAMPLES = Kind(
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
        # Rows that could not be recorded.
        rows_dropped=pa.int64(),
    ),
)

REQUESTS = Kind(
    "requests",
    1,
    "A sampled request of a client that asks one thing at a time (Telesto's table 5.3).",
    _columns(
        at=_AT,  # when its answer had gone
        node=_NAME,
        verb=_NAME,
        # How many requests it stands for.
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

LIFECYCLES = Kind(
    "lifecycles",
    1,
    "A sampled message, from its arrival at the node to its end.",
    _columns(
        at=_AT,  # when it ended
        node=_NAME,
        queue=_NAME,
        message_id=pa.int64(),
        weight=pa.float64(),
        payload_bytes=pa.int32(),
        put_at=_AT,
        # Parsed, stored, confirmed: the phases of its put. Null, but for the store: it came with
        # others that are answered as a whole, by a transaction, a topic or from another queue.
        parse_us=_OrNull(pa.float64()),
        store_us=pa.float64(),
        respond_us=_OrNull(pa.float64()),
        # From when it could be delivered to its first delivery; from its last delivery to its end.
        # Null: it ended without.
        wait_us=_OrNull(pa.float64()),
        service_us=_OrNull(pa.float64()),
        # From its arrival to its end.
        response_us=pa.float64(),
        deliveries=pa.int32(),
        outcome=_NAME,  # acked, dead, dropped, expired, moved, purged
    ),
)

EVENTS = Kind(
    "events",
    1,
    "Something that happened: join, leave, own, disown, scale, boot, halt, violation, …",
    _columns(
        at=_AT,
        node=_NAME,
        event=_NAME,
        # What it happened to: a member, a queue, a machine, an agreement.
        subject=pa.string(),
        duration_s=_OrNull(pa.float64()),
        value=_OrNull(pa.float64()),
        detail=pa.map_(pa.string(), pa.string()),
    ),
)

DECISIONS = Kind(
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

CONTROL_STEPS = Kind(
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
        # What was wanted, what was measured, what was taken for it (without outliers), and the
        # difference. Null: not known.
        target_per_s=_OrNull(pa.float64()),
        rate_per_s=_OrNull(pa.float64()),
        used_per_s=_OrNull(pa.float64()),
        error_per_s=_OrNull(pa.float64()),
        # The terms of the controller, before limits and after, and the whole number set.
        proportional=_OrNull(pa.float64()),
        integral=_OrNull(pa.float64()),
        derivative=_OrNull(pa.float64()),
        wanted=_OrNull(pa.float64()),
        level=pa.float64(),
        output=pa.float64(),
        saturated=_NAME,  # "", low, high
        acked_per_s=pa.float64(),
        # Messages that wait unbegun in the consumer; null: not known.
        held=_OrNull(pa.float64()),
        # Set on average while it was measured, and whether the queue had less than that for it.
        prefetch=pa.float64(),
        starved=pa.bool_(),
        notes=pa.list_(pa.string()),
    ),
)

HTTP_SAMPLES = Kind(
    "http_samples",
    1,
    "One door of an HTTP service in one interval, and each instance behind it as that door saw it.",
    _columns(
        at=_AT,
        interval_s=pa.float64(),
        node=_NAME,
        service=_NAME,
        # One running door: another after a restart.
        door=_NAME,
        # Null: the row of the door itself. What is the other row's to say is 0 here, so that sums
        # over all rows are right.
        instance=_OrNull(pa.int64()),
        # Of the door: let in; whole answers of instances that went to clients; none did.
        accepted=pa.int64(),
        answered=pa.int64(),
        refused=pa.int64(),
        # Of an instance: sent to it, answered by it, of those with 500 and above; without a whole
        # answer.
        sent=pa.int64(),
        served=pa.int64(),
        server_errors=pa.int64(),
        failed=pa.int64(),
        # Of the door as clients see it, and of an instance from sending to the end of its answer.
        response=_HISTOGRAM,
        service_time=_HISTOGRAM,
        # At the end of the interval. Of the door: all that it has in hand, and what waits there for
        # an instance; of an instance: what it has not answered.
        in_flight=pa.int64(),
        waiting=pa.int64(),
        outstanding=pa.int64(),
        # Of an instance, as the store knows it; null of the door, and of one not in the store.
        version=_OrNull(pa.int32()),
        weight=_OrNull(pa.float64()),
        concurrency=_OrNull(pa.int32()),
        free_memory_bytes=_OrNull(pa.float64()),
        # Why it is out of the balancing for now; "": it is not.
        ejected=pa.string(),
        # Of the door: what it cannot do now; "": it can.
        trouble=pa.string(),
        # Of the door: rows of it that could not be recorded since its last row.
        rows_dropped=pa.int64(),
    ),
)

HTTP_PROBES = Kind(
    "http_probes",
    1,
    "A request that a probe made of an HTTP service from outside, and what came of it.",
    _columns(
        at=_AT,  # when it had ended
        node=_NAME,
        service=_NAME,
        # Whom it asked: a door or an instance; null: not an instance by itself.
        address=_NAME,
        instance=_OrNull(pa.int64()),
        ok=pa.bool_(),
        status=_OrNull(pa.int32()),
        duration_s=pa.float64(),
        # Why it is not ok; "": it is.
        failure=pa.string(),
    ),
)

HTTP_REQUESTS = Kind(
    "http_requests",
    1,
    "A sampled request of an HTTP service; never what it asked for, nor what it carried.",
    _columns(
        at=_AT,  # when it had been answered
        node=_NAME,
        service=_NAME,
        door=_NAME,
        # Who answered; null: the door itself.
        instance=_OrNull(pa.int64()),
        method=_NAME,
        status=pa.int32(),
        weight=pa.float64(),
        # The phases add up to the total, as the door saw it.
        wait_door_us=pa.float64(),
        connect_us=pa.float64(),
        server_us=pa.float64(),
        total_us=pa.float64(),
    ),
)

KINDS: dict[str, Kind] = {
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
