"""The metrics of a node as Prometheus text.

Two tables define every metric: its name, its kind, its help text, and the function that reads it
from the stats. The text, the reference page and the tests are made from these tables.

    for piece in metrics.pieces(stats): …    b"# HELP tidegate_queue_waiting_messages …"

prometheus-client escapes labels and formats numbers. This module joins the lines itself, in pieces
that take about a millisecond. The writer of prometheus-client takes 7 µs per line, a tenth of a
second for 200 queues, and during that time the node would deliver no messages.

The bounds are every eighth bound of the live histogram, so their counts are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tidegate.telemetry.histogram import BUCKETS, LARGEST_S, upper_bound_s
from tidegate.telemetry.numbers import ControlNumbers, Durations, NodeNumbers, QueueNumbers

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
QUEUES_MAX = 500
_LINES_PER_PIECE = 500
_LABELS_PER_PIECE = 50

# Formats a float as Prometheus expects it.
_figure: Callable[[float], str] = floatToGoString

# From 128 µs to 18 minutes in doublings, and half an hour.
BOUNDS_S = [*(2**k / 1e6 for k in range(7, 31)), LARGEST_S]
_BOUND_TEXTS = [*map(_figure, BOUNDS_S), "+Inf"]
# Upper limits for the bounds of live buckets. The last bucket but one ends at LARGEST_S, although
# its computed bound is larger. The last bucket goes to +Inf.
_REACHES_S = [bound_s * (1 + 1e-9) for bound_s in (*BOUNDS_S[:-1], upper_bound_s(BUCKETS - 2))]

Source = TypeVar("Source")
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True)
class Shown(Generic[Source]):
    """One metric, and the function that reads its value from the stats."""

    name: str
    kind: Kind
    says: str
    read: Callable[[Source], float | Durations]


NODE_METRICS: tuple[Shown[NodeNumbers], ...] = (
    Shown("tidegate_node_uptime_seconds", "gauge", "Since the node started.", lambda n: n.uptime_s),
    Shown("tidegate_node_connections", "gauge", "Open connections.", lambda n: n.connections),
    Shown(
        "tidegate_node_queues",
        "gauge",
        "Queues that the node owns.",
        lambda n: len(n.queues) + n.queues_left_out,
    ),
    Shown(
        "tidegate_node_queues_left_out",
        "gauge",
        "Of those, how many are not shown here, for metrics.queues_max.",
        lambda n: n.queues_left_out,
    ),
    Shown(
        "tidegate_node_memory_bound_bytes",
        "gauge",
        "What messages may take of the node's memory.",
        lambda n: n.memory_bound_bytes,
    ),
    Shown(
        "tidegate_node_memory_messages_bytes",
        "gauge",
        "What messages take of it; the rest waits in the store.",
        lambda n: n.memory_resident_bytes,
    ),
    Shown(
        "tidegate_node_memory_process_bytes",
        "gauge",
        "Resident memory of the process.",
        lambda n: n.process_memory_bytes,
    ),
    Shown(
        "tidegate_node_cpu_seconds_total",
        "counter",
        "Processor time of the process.",
        lambda n: n.process_cpu_s,
    ),
    Shown(
        "tidegate_node_commits_total",
        "counter",
        "Transactions that stored messages.",
        lambda n: n.commits,
    ),
    Shown(
        "tidegate_node_committed_messages_total",
        "counter",
        "Messages that they stored.",
        lambda n: round(n.messages_per_commit * n.commits),
    ),
    Shown("tidegate_node_commit_seconds", "histogram", "How long they took.", lambda n: n.commit),
    Shown(
        "tidegate_node_packets_received_total",
        "counter",
        "Packets that came in.",
        lambda n: n.packets_in,
    ),
    Shown(
        "tidegate_node_packets_sent_total",
        "counter",
        "Packets that went out.",
        lambda n: n.packets_out,
    ),
    Shown(
        "tidegate_node_rows_recorded_total",
        "counter",
        "Rows of telemetry in the lake.",
        lambda n: n.rows_recorded,
    ),
    Shown(
        "tidegate_node_rows_dropped_total",
        "counter",
        "Rows of telemetry that could not be recorded, since the lake cannot be written.",
        lambda n: n.rows_dropped,
    ),
)

QUEUE_METRICS: tuple[Shown[QueueNumbers], ...] = (
    Shown(
        "tidegate_queue_waiting_messages",
        "gauge",
        "Messages that wait for a consumer, or for their time to come.",
        lambda q: q.waiting,
    ),
    Shown(
        "tidegate_queue_waiting_in_store_messages",
        "gauge",
        "Of those, how many are in the store only.",
        lambda q: q.waiting_in_store,
    ),
    Shown(
        "tidegate_queue_delayed_messages",
        "gauge",
        "Of those, how many are not due yet, for their delay or for a retry.",
        lambda q: q.delayed,
    ),
    Shown(
        "tidegate_queue_unacknowledged_messages",
        "gauge",
        "Messages in the hands of consumers.",
        lambda q: q.unacknowledged,
    ),
    Shown(
        "tidegate_queue_oldest_age_seconds",
        "gauge",
        "For how long the oldest message could have been delivered; 0 when none could.",
        lambda q: q.oldest_age_s,
    ),
    Shown(
        "tidegate_queue_resident_bytes",
        "gauge",
        "Memory that its messages take.",
        lambda q: q.resident_bytes,
    ),
    Shown("tidegate_queue_consumers", "gauge", "Subscriptions.", lambda q: len(q.consumers)),
    Shown(
        "tidegate_queue_prefetch_messages",
        "gauge",
        "Unacknowledged messages that they are allowed, together.",
        lambda q: sum(consumer.prefetch for consumer in q.consumers),
    ),
    Shown(
        "tidegate_queue_steered_consumers",
        "gauge",
        "Subscriptions whose prefetch the node steers to a goal.",
        lambda q: len(steps_of(q)),
    ),
    Shown(
        "tidegate_queue_prefetch_target_per_second",
        "gauge",
        "Messages a second that are wanted at them, on average; 0 when that is not known.",
        lambda q: _mean(step.target_per_s for step in steps_of(q)),
    ),
    Shown(
        "tidegate_queue_prefetch_error_per_second",
        "gauge",
        "By how much less arrives at them than wanted, on average.",
        lambda q: _mean(step.error_per_s for step in steps_of(q)),
    ),
    Shown(
        "tidegate_queue_prefetch_output_messages",
        "gauge",
        "Prefetch that their controllers want, with its fraction, on average.",
        lambda q: _mean(step.level for step in steps_of(q)),
    ),
    Shown(
        "tidegate_queue_prefetch_saturated_consumers",
        "gauge",
        "Of those, how many are at a limit of their prefetch.",
        lambda q: sum(1 for step in steps_of(q) if step.saturated),
    ),
    Shown(
        "tidegate_queue_prefetch_held_consumers",
        "gauge",
        "Of those, how many are not steered by what was measured: held, by hand, or fallen back.",
        lambda q: sum(1 for step in steps_of(q) if step.mode != "automatic"),
    ),
    Shown(
        "tidegate_queue_waiting_readers",
        "gauge",
        "Reads that wait for a message.",
        lambda q: q.readers_waiting,
    ),
    Shown(
        "tidegate_queue_confirmed_total",
        "counter",
        "Messages put and confirmed: they are on disk, unless the queue is transient.",
        lambda q: q.put,
    ),
    Shown(
        "tidegate_queue_refused_total",
        "counter",
        "Messages whose put was refused.",
        lambda q: q.refused,
    ),
    Shown(
        "tidegate_queue_delivered_total",
        "counter",
        "Deliveries, repeated ones too.",
        lambda q: q.delivered,
    ),
    Shown(
        "tidegate_queue_redelivered_total",
        "counter",
        "Of those, deliveries of messages that may have been delivered before.",
        lambda q: q.redelivered,
    ),
    Shown(
        "tidegate_queue_returned_total",
        "counter",
        "Messages that came back: returned, lease run out, or consumer gone.",
        lambda q: q.returned,
    ),
    Shown("tidegate_queue_acknowledged_total", "counter", "Messages done.", lambda q: q.acked),
    Shown(
        "tidegate_queue_dead_lettered_total",
        "counter",
        "Messages given up that went to the dead letters.",
        lambda q: q.dead_lettered,
    ),
    Shown(
        "tidegate_queue_dropped_total",
        "counter",
        "Messages given up that went nowhere: the queue keeps no dead letters.",
        lambda q: q.dropped,
    ),
    Shown(
        "tidegate_queue_expired_total",
        "counter",
        "Messages that outlived their time.",
        lambda q: q.expired,
    ),
    Shown(
        "tidegate_queue_deduplicated_total",
        "counter",
        "Messages that were not stored, since one with their dedup id was.",
        lambda q: q.deduplicated,
    ),
    Shown(
        "tidegate_queue_handed_over_total",
        "counter",
        "Messages that went to a sibling: from an alias to a replica, or from one to another.",
        lambda q: q.handed_over,
    ),
    Shown(
        "tidegate_queue_taken_over_total",
        "counter",
        "Messages that came from a sibling.",
        lambda q: q.taken_over,
    ),
    Shown("tidegate_queue_paused", "gauge", "1 while the queue is paused.", lambda q: q.paused),
    Shown(
        "tidegate_queue_wait_seconds",
        "histogram",
        "From when a message could be delivered to its first delivery; delays do not count.",
        lambda q: q.wait,
    ),
    Shown(
        "tidegate_queue_service_seconds",
        "histogram",
        "From delivery to acknowledgement.",
        lambda q: q.service,
    ),
)


def steps_of(queue: QueueNumbers) -> list[ControlNumbers]:
    """Return the newest control step of each consumer with a controlled prefetch."""
    return [consumer.control[-1] for consumer in queue.consumers if consumer.control]


def _mean(figures: Iterable[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else 0.0


class Exposition:
    """Writes the metrics of one node, and caches the label texts of its queues."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], str] = {}

    def pieces(self, node: NodeNumbers) -> Iterator[bytes]:
        """Yield the text in pieces, so that the caller can run other tasks in between.

        Some pieces are empty.
        """
        of_node = label_text({"node": node.name})
        lines: list[str] = []
        for shown in NODE_METRICS:
            lines += head(shown)
            lines += lines_of(shown.name, of_node, shown.read(node))
        yield joined(lines)
        yield from self._learn_labels(node)
        for queue_metric in QUEUE_METRICS:
            lines = head(queue_metric)
            for queue in node.queues:
                labels = self._labels[node.name, queue.name]
                lines += lines_of(queue_metric.name, labels, queue_metric.read(queue))
                if len(lines) >= _LINES_PER_PIECE:
                    yield joined(lines)
                    lines = []
            if lines:
                yield joined(lines)

    def _learn_labels(self, node: NodeNumbers) -> Iterator[bytes]:
        """Cache the labels of the present queues and drop all others; yield empty pieces."""
        known, self._labels = self._labels, {}
        for number, queue in enumerate(node.queues, 1):
            key = (node.name, queue.name)
            self._labels[key] = known.get(key) or label_text(_labels(node, queue))
            if number % _LABELS_PER_PIECE == 0:
                yield b""


def _labels(node: NodeNumbers, queue: QueueNumbers) -> dict[str, str]:
    labels = {"node": node.name, "queue": queue.logical or queue.name}
    if queue.replica:
        labels["replica"] = str(queue.replica)
    return labels


def cumulative(durations: Durations) -> list[int]:
    """Return the number of durations up to each of BOUNDS_S, and finally the total."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for bound_s, count in durations.buckets:
        counts[bisect_left(_REACHES_S, bound_s)] += count
    return list(accumulate(counts))


def table() -> str:
    """Return the metrics as a Markdown table for the docs."""
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    rows += [table_row(shown, "`node`") for shown in NODE_METRICS]
    rows += [table_row(shown, "`node`, `queue` (and `replica`)") for shown in QUEUE_METRICS]
    return "\n".join(rows)


def table_row(shown: Shown[Source], labels: str) -> str:
    """Return a metric as a row of the docs table."""
    return f"| `{shown.name}` | {shown.kind} | {labels} | {shown.says} |"


def head(shown: Shown[Source]) -> list[str]:
    """Return the HELP and TYPE lines of a metric."""
    return [f"# HELP {shown.name} {shown.says}", f"# TYPE {shown.name} {shown.kind}"]


def lines_of(name: str, labels: str, figure: float | Durations) -> list[str]:
    """Return the sample lines of a metric: one line, or those of a histogram."""
    if not isinstance(figure, Durations):
        return [f"{name}{{{labels}}} {_figure(figure)}"]
    counts = cumulative(figure)
    lines = [
        f'{name}_bucket{{le="{bound}",{labels}}} {count}'
        for bound, count in zip(_BOUND_TEXTS, counts, strict=True)
    ]
    lines.append(f"{name}_count{{{labels}}} {counts[-1]}")
    lines.append(f"{name}_sum{{{labels}}} {_figure(figure.sum_s)}")
    return lines


def joined(lines: list[str]) -> bytes:
    """Return lines as bytes to send."""
    return ("\n".join(lines) + "\n").encode()


class _Only(Collector):
    """A collector of a single metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def label_text(labels: dict[str, str]) -> str:
    """Return labels as escaped text between the braces; names may contain any characters."""
    family = GaugeMetricFamily("x", "", labels=list(labels))
    family.add_metric(list(labels.values()), 0)
    sample = generate_latest(_Only(family)).decode().split("\n")[2]
    return sample.removeprefix("x{").rpartition("}")[0]
