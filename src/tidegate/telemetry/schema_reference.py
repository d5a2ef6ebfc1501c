"""Texts of the telemetry columns; the tables of docs/telemetry.md are generated from here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.telemetry.schemas import KINDS, Kind

# The text of a column in every kind, unless COLUMN_TEXTS_OF_KIND has one for the kind.
SAYS = {
    "at": "end of the interval",
    "interval_s": "its length, by the monotonic clock",
    "node": "who recorded it",
    "queue": "its name",
    "replica": "which replica of the queue, from 0",
    "epoch": "of the ownership; grows with each new owner",
    "put": "messages stored within the interval",
    "delivered": "deliveries, repeated ones too",
    "acked": "messages done",
    "returned": "messages that came back: returned, lease run out, consumer gone",
    "redelivered": "deliveries of messages that may have been delivered before",
    "refused": "messages whose put was refused",
    "dead_lettered": "messages given up that went to the dead letters",
    "dropped": "messages given up that went nowhere",
    "expired": "messages that outlived their time",
    "deduplicated": "messages not stored, since one with their dedup id was",
    "wait_s_sum": "sum of the waits that `wait` counts",
    "service_s_sum": "sum of the services that `service` counts",
    "wait": "histogram: from when a message could be delivered to its first delivery",
    "service": "histogram: from delivery to acknowledgement",
    "waiting": "messages that wait at the end, delayed ones too",
    "waiting_in_store": "of those, in the store only",
    "delayed": "of those, not due yet",
    "unacknowledged": "messages in the hands of consumers at the end",
    "oldest_age_s": "how long the oldest could have been delivered; 0: none could",
    "resident_bytes": "memory that its messages take",
    "prefetch": "messages that may be unacknowledged, at the end; of a queue all consumers' sum",
    "producers": "who put within the interval",
    "consumers": "subscriptions at the end",
    "readers": "reads that wait at the end",
    "group": "the queue, and the client's name up to its first `#` or `@`: who does the same",
    "client": "the client's name",
    "consumer": "the number of its subscription",
    "automatic": "whether a delivery acknowledges",
    "arrival_per_s": "y(k+1): deliveries a second within the interval",
    "arrival_before_per_s": "y(k): the same of the interval before; null after a gap",
    "prefetch_before": "u(k): the prefetch at the end of the interval before; null after a gap",
    "role": "what kind of process: node, …",
    "member_id": "its number among the members",
    "connections": "open ones at the end",
    "queues": "that it owns at the end",
    "packets_in": "received within the interval",
    "packets_out": "sent",
    "commits": "transactions that stored messages",
    "committed_messages": "how many they stored",
    "commit_s_sum": "how long they took together",
    "process_memory_bytes": "resident memory at the end",
    "cpu_s": "processor time of the process within the interval",
    "messages_memory_bytes": "what messages take of its memory",
    "rows_dropped": "rows that could not be recorded since the last row of this kind",
    "verb": "the packet that was answered",
    "weight": "how many it stands for",
    "wait_client_us": "from the end of the answer before until the request came",
    "parse_us": "until it was parsed; null: it came by a transaction, a topic or another queue",
    "store_us": "until it was stored",
    "wait_message_us": "a read that waited for a message",
    "respond_us": "until the answer had gone; null as above",
    "total_us": "all of them",
    "message_id": "within its queue",
    "payload_bytes": "its size",
    "put_at": "when it came to the node",
    "wait_us": "from when it could be delivered to its first delivery; null: it was not",
    "service_us": "from its last delivery to its end; null: it was not delivered",
    "response_us": "from its arrival to its end",
    "deliveries": "how often it was delivered",
    "outcome": "acked, dead, dropped, expired, moved or purged",
    "event": "join, leave, rejoin, own, takeover, disown; scale, boot, halt; violation, warned, "
    "eased, kept; reconfigured, …",
    "subject": "what it happened to: a member, a queue, a machine, an agreement",
    "duration_s": "how long it took; null: at once",
    "value": "a figure that goes with it, if any",
    "detail": "what else there is to know",
    "loop": "which loop decided",
    "law": "by which law",
    "inputs": "what it saw",
    "outputs": "what it chose",
    "action": "what was done",
    "reason": "why, in a sentence",
    "mode": "who decided: automatic (the controller), held, fallback, manual",
    "target_per_s": "messages a second that were wanted; null: not known yet",
    "rate_per_s": "deliveries a second within the interval",
    "used_per_s": "the rate as the controller took it: without outliers, within the deadband",
    "error_per_s": "target less that",
    "proportional": "the P part of `wanted`, in messages of prefetch",
    "integral": "the I part",
    "derivative": "the D part",
    "wanted": "their sum, before limits",
    "level": "within limits: the prefetch from now on, with its fraction",
    "output": "the whole number that was set just then",
    "saturated": "which limit holds: low, high, or empty",
    "acked_per_s": "acknowledgements a second within the interval",
    "held": "messages that wait unbegun in the consumer, as its node can tell; null: unknown",
    "starved": "whether the consumer had credit that the queue did not use",
    "notes": "what else was done: outlier, redesigned: …, the ceiling is …",
    "service_time": "histogram: from sending to an instance to the end of its answer",
    "door": "which running door; another after a restart",
    "instance": "which instance; null: the row is that of the door itself",
    "accepted": "requests that the door let in",
    "answered": "whole answers of instances that went to clients",
    "sent": "requests sent to the instance",
    "served": "of those, answered by it",
    "server_errors": "of those, with 500 and above",
    "failed": "requests without a whole answer of it",
    "response": "histogram: as clients see it, waiting in the door included",
    "in_flight": "requests that the door has in hand at the end",
    "outstanding": "requests that the instance has not answered at the end",
    "version": "of what is deployed; null: the store does not know it",
    "concurrency": "requests that it may have at a time",
    "free_memory_bytes": "as its machine measures it",
    "ejected": "why it is out of the balancing for now; empty: it is not",
    "trouble": "what the door cannot do now; empty: it can",
    "address": "whom it asked",
    "ok": "whether it was answered as it should be",
    "status": "of the answer",
    "failure": "why it is not ok; empty: it is",
    "method": "of the request",
    "wait_door_us": "until an instance was free for it",
    "connect_us": "until it was sent: a connection, or another try",
    "server_us": "until its answer had gone",
}
SAYS_OF = {
    ("requests", "at"): "when the answer had gone",
    ("requests", "parse_us"): "until it was parsed",
    ("requests", "store_us"): "until the store had done its part; 0 for reads",
    ("requests", "respond_us"): "until the answer had gone",
    ("lifecycles", "at"): "when it ended",
    ("events", "at"): "when it happened",
    ("control_steps", "prefetch"): "messages that might be unacknowledged, on average",
    ("decisions", "at"): "when it was taken",
    ("decisions", "service"): "of which queue or application",
    ("http_samples", "service"): "the HTTP service",
    ("http_samples", "refused"): "requests whose client got no whole answer of an instance",
    ("http_samples", "waiting"): "requests that wait in the door at the end",
    ("http_samples", "weight"): "what doors give the instance beside others; 0: a spare",
    ("http_samples", "rows_dropped"): "of the door: rows that could not be recorded since",
    ("http_probes", "at"): "when it had ended",
    ("http_probes", "service"): "the HTTP service",
    ("http_probes", "instance"): "which instance; null: it asked a door",
    ("http_probes", "status"): "of the answer; null: there was none",
    ("http_probes", "duration_s"): "how long it took",
    ("http_requests", "at"): "when it had been answered",
    ("http_requests", "service"): "the HTTP service",
    ("http_requests", "instance"): "who answered; null: the door itself",
}


def says(kind: Kind, column: str) -> str:
    """Return the text of a column."""
    return SAYS_OF.get((kind.name, column)) or SAYS[column]


def tables() -> str:
    """Return a Markdown table of the columns of every kind, for the docs."""
    parts = []
    for kind in KINDS.values():
        parts.append(f"### {kind.name}\n{kind.says} Version {kind.version}.\n")
        parts.append("| column | type | what it says |\n|---|---|---|")
        parts += [
            f"| `{field.name}` | {_type(field.type)} | {says(kind, field.name)} |"
            for field in kind.columns
        ]
        parts.append("")
    return "\n".join(parts).rstrip()


def _type(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        return "string"
    if pa.types.is_timestamp(kind):
        return "timestamp, µs, UTC"
    if pa.types.is_map(kind):
        return f"map of string to {_type(kind.item_type)}"
    if pa.types.is_list(kind):
        return "list of string" if pa.types.is_string(kind.value_type) else "list of bucket, count"
    return str(kind)
