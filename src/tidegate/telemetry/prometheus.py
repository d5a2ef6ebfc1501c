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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tidegate.core.services import DoorSample, InstanceSample
from tidegate.core.services import Durations as Bounds
from tidegate.telemetry.meters import BUCKETS, LARGEST_S, upper_bound_s
from tidegate.telemetry.stats import ControlStats, Durations, NodeStats, QueueStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
QUEUES_MAX = 500
_LINES_PER_PIECE = 500
_LABELS_PER_PIECE = 50

# Formats a float as Prometheus expects it.
_format_value: Callable[[float], str] = floatToGoString

# From 128 µs to 18 minutes in doublings, and half an hour.
BOUNDS_S = [*(2**k / 1e6 for k in range(7, 31)), LARGEST_S]
_BOUND_TEXTS = [*map(_format_value, BOUNDS_S), "+Inf"]
# Upper limits for the bounds of live buckets. The last bucket but one ends at LARGEST_S, although
# its computed bound is larger. The last bucket goes to +Inf.
_REACHES_S = [bound_s * (1 + 1e-9) for bound_s in (*BOUNDS_S[:-1], upper_bound_s(BUCKETS - 2))]

Source = TypeVar("Source")
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True)
class ExposedMetric(Generic[Source]):
    """One metric, and the function that reads its value from the stats."""

    name: str
    kind: Kind
    says: str
    read: Callable[[Source], float | Durations]


NODE_METRICS: tuple[ExposedMetric[NodeStats], ...] = (
    ExposedMetric(
        "tidegate_node_uptime_seconds",
        "gauge",
        "Seconds since the node started.",
        lambda n: n.uptime_s,
    ),
    ExposedMetric(
        "tidegate_node_connections", "gauge", "Open connections.", lambda n: n.connections
    ),
    ExposedMetric(
        "tidegate_node_queues",
        "gauge",
        "Queues that the node owns.",
        lambda n: len(n.queues) + n.queues_left_out,
    ),
    ExposedMetric(
        "tidegate_node_queues_left_out",
        "gauge",
        "Owned queues without metrics here, because of metrics.queues_max.",
        lambda n: n.queues_left_out,
    ),
    ExposedMetric(
        "tidegate_node_memory_bound_bytes",
        "gauge",
        "Memory limit of the node's messages.",
        lambda n: n.memory_bound_bytes,
    ),
    ExposedMetric(
        "tidegate_node_memory_messages_bytes",
        "gauge",
        "Memory that the node's messages take; further messages wait in the store.",
        lambda n: n.memory_resident_bytes,
    ),
    ExposedMetric(
        "tidegate_node_memory_process_bytes",
        "gauge",
        "Resident memory of the process.",
        lambda n: n.process_memory_bytes,
    ),
    ExposedMetric(
        "tidegate_node_cpu_seconds_total",
        "counter",
        "Processor time of the process.",
        lambda n: n.process_cpu_s,
    ),
    ExposedMetric(
        "tidegate_node_commits_total",
        "counter",
        "Transactions that stored messages.",
        lambda n: n.commits,
    ),
    ExposedMetric(
        "tidegate_node_committed_messages_total",
        "counter",
        "Messages stored by these transactions, in all.",
        lambda n: round(n.messages_per_commit * n.commits),
    ),
    ExposedMetric(
        "tidegate_node_commit_seconds",
        "histogram",
        "Duration of the transactions that stored messages.",
        lambda n: n.commit,
    ),
    ExposedMetric(
        "tidegate_node_packets_received_total",
        "counter",
        "Packets that the node received.",
        lambda n: n.packets_in,
    ),
    ExposedMetric(
        "tidegate_node_packets_sent_total",
        "counter",
        "Packets that the node sent.",
        lambda n: n.packets_out,
    ),
    ExposedMetric(
        "tidegate_node_rows_recorded_total",
        "counter",
        "Rows of telemetry in the lake.",
        lambda n: n.rows_recorded,
    ),
    ExposedMetric(
        "tidegate_node_rows_dropped_total",
        "counter",
        "Rows of telemetry that could not be recorded, since the lake cannot be written.",
        lambda n: n.rows_dropped,
    ),
)

QUEUE_METRICS: tuple[ExposedMetric[QueueStats], ...] = (
    ExposedMetric(
        "tidegate_queue_waiting_messages",
        "gauge",
        "Messages that wait for a consumer, or for their time to come.",
        lambda q: q.waiting,
    ),
    ExposedMetric(
        "tidegate_queue_waiting_in_store_messages",
        "gauge",
        "Waiting messages that are in the store only.",
        lambda q: q.waiting_in_store,
    ),
    ExposedMetric(
        "tidegate_queue_delayed_messages",
        "gauge",
        "Waiting messages that are not due yet, because of their delay or a retry.",
        lambda q: q.delayed,
    ),
    ExposedMetric(
        "tidegate_queue_unacknowledged_messages",
        "gauge",
        "Messages that consumers hold.",
        lambda q: q.unacknowledged,
    ),
    ExposedMetric(
        "tidegate_queue_oldest_age_seconds",
        "gauge",
        "Time for which the oldest message could have been delivered; 0 if there is none.",
        lambda q: q.oldest_age_s,
    ),
    ExposedMetric(
        "tidegate_queue_resident_bytes",
        "gauge",
        "Memory that the queue's messages take.",
        lambda q: q.resident_bytes,
    ),
    ExposedMetric(
        "tidegate_queue_consumers",
        "gauge",
        "Subscriptions of the queue.",
        lambda q: len(q.consumers),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_messages",
        "gauge",
        "Sum of the prefetch of all subscriptions.",
        lambda q: sum(consumer.prefetch for consumer in q.consumers),
    ),
    ExposedMetric(
        "tidegate_queue_steered_consumers",
        "gauge",
        "Subscriptions whose prefetch the node controls.",
        lambda q: len(newest_control_steps(q)),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_target_per_second",
        "gauge",
        "Target rate of the controlled subscriptions, on average; 0 if it is not known.",
        lambda q: _mean(step.target_per_s for step in newest_control_steps(q)),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_error_per_second",
        "gauge",
        "Target rate minus measured rate of the controlled subscriptions, on average.",
        lambda q: _mean(step.error_per_s for step in newest_control_steps(q)),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_output_messages",
        "gauge",
        "Prefetch of the controlled subscriptions before rounding, on average.",
        lambda q: _mean(step.level for step in newest_control_steps(q)),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_saturated_consumers",
        "gauge",
        "Controlled subscriptions that are at a limit of their prefetch.",
        lambda q: sum(1 for step in newest_control_steps(q) if step.saturated),
    ),
    ExposedMetric(
        "tidegate_queue_prefetch_held_consumers",
        "gauge",
        "Controlled subscriptions whose prefetch is held, overridden or at its fallback value.",
        lambda q: sum(1 for step in newest_control_steps(q) if step.mode != "automatic"),
    ),
    ExposedMetric(
        "tidegate_queue_waiting_readers",
        "gauge",
        "Reads that wait for a message.",
        lambda q: q.readers_waiting,
    ),
    ExposedMetric(
        "tidegate_queue_confirmed_total",
        "counter",
        "Messages put and confirmed: they are on disk, unless the queue is transient.",
        lambda q: q.put,
    ),
    ExposedMetric(
        "tidegate_queue_refused_total",
        "counter",
        "Messages whose put was refused.",
        lambda q: q.refused,
    ),
    ExposedMetric(
        "tidegate_queue_delivered_total",
        "counter",
        "Deliveries, including repeated ones.",
        lambda q: q.delivered,
    ),
    ExposedMetric(
        "tidegate_queue_redelivered_total",
        "counter",
        "Deliveries of messages that may have been delivered before.",
        lambda q: q.redelivered,
    ),
    ExposedMetric(
        "tidegate_queue_returned_total",
        "counter",
        "Messages that came back because they were returned, their lease "
        "expired, or their consumer ended.",
        lambda q: q.returned,
    ),
    ExposedMetric(
        "tidegate_queue_acknowledged_total", "counter", "Acknowledged messages.", lambda q: q.acked
    ),
    ExposedMetric(
        "tidegate_queue_dead_lettered_total",
        "counter",
        "Messages that moved to the dead letters.",
        lambda q: q.dead_lettered,
    ),
    ExposedMetric(
        "tidegate_queue_dropped_total",
        "counter",
        "Messages that were given up without a dead-letter queue.",
        lambda q: q.dropped,
    ),
    ExposedMetric(
        "tidegate_queue_expired_total",
        "counter",
        "Messages whose time to live ended.",
        lambda q: q.expired,
    ),
    ExposedMetric(
        "tidegate_queue_deduplicated_total",
        "counter",
        "Messages that were not stored because their dedup id was known.",
        lambda q: q.deduplicated,
    ),
    ExposedMetric(
        "tidegate_queue_handed_over_total",
        "counter",
        "Messages that moved from an alias to a replica, or from one replica to another.",
        lambda q: q.handed_over,
    ),
    ExposedMetric(
        "tidegate_queue_taken_over_total",
        "counter",
        "Messages that came from the alias or from another replica.",
        lambda q: q.taken_over,
    ),
    ExposedMetric(
        "tidegate_queue_paused", "gauge", "1 while the queue is paused.", lambda q: q.paused
    ),
    ExposedMetric(
        "tidegate_queue_wait_seconds",
        "histogram",
        "Time from when a message could be delivered to its first delivery, without delays.",
        lambda q: q.wait,
    ),
    ExposedMetric(
        "tidegate_queue_service_seconds",
        "histogram",
        "Time from delivery to acknowledgement.",
        lambda q: q.service,
    ),
)


def newest_control_steps(queue: QueueStats) -> list[ControlStats]:
    """Return the newest control step of each consumer with a controlled prefetch."""
    return [consumer.control[-1] for consumer in queue.consumers if consumer.control]


def _mean(figures: Iterable[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else 0.0


class NodeMetrics:
    """Writes the metrics of one node, and caches the label texts of its queues."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], str] = {}

    def pieces(self, node: NodeStats) -> Iterator[bytes]:
        """Yield the text in pieces, so that the caller can run other tasks in between.

        Some pieces are empty.
        """
        of_node = label_text({"node": node.name})
        lines: list[str] = []
        for shown in NODE_METRICS:
            lines += metric_header(shown)
            lines += metric_lines(shown.name, of_node, shown.read(node))
        yield join_lines(lines)
        yield from self._learn_labels(node)
        for queue_metric in QUEUE_METRICS:
            lines = metric_header(queue_metric)
            for queue in node.queues:
                labels = self._labels[node.name, queue.name]
                lines += metric_lines(queue_metric.name, labels, queue_metric.read(queue))
                if len(lines) >= _LINES_PER_PIECE:
                    yield join_lines(lines)
                    lines = []
            if lines:
                yield join_lines(lines)

    def _learn_labels(self, node: NodeStats) -> Iterator[bytes]:
        """Cache the labels of the present queues and drop all others; yield empty pieces."""
        known, self._labels = self._labels, {}
        for number, queue in enumerate(node.queues, 1):
            key = (node.name, queue.name)
            self._labels[key] = known.get(key) or label_text(_labels(node, queue))
            if number % _LABELS_PER_PIECE == 0:
                yield b""


def _labels(node: NodeStats, queue: QueueStats) -> dict[str, str]:
    labels = {"node": node.name, "queue": queue.logical or queue.name}
    if queue.replica:
        labels["replica"] = str(queue.replica)
    return labels


def cumulative_counts(durations: Durations) -> list[int]:
    """Return the number of durations up to each of BOUNDS_S, and finally the total."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for bound_s, count in durations.buckets:
        counts[bisect_left(_REACHES_S, bound_s)] += count
    return list(accumulate(counts))


def node_metrics_table() -> str:
    """Return the metrics as a Markdown table for the docs."""
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    rows += [table_row(shown, "`node`") for shown in NODE_METRICS]
    rows += [table_row(shown, "`node`, `queue` (and `replica`)") for shown in QUEUE_METRICS]
    return "\n".join(rows)


def table_row(shown: ExposedMetric[Source], labels: str) -> str:
    """Return a metric as a row of the docs table."""
    return f"| `{shown.name}` | {shown.kind} | {labels} | {shown.says} |"


def metric_header(shown: ExposedMetric[Source]) -> list[str]:
    """Return the HELP and TYPE lines of a metric."""
    return [f"# HELP {shown.name} {shown.says}", f"# TYPE {shown.name} {shown.kind}"]


def metric_lines(name: str, labels: str, figure: float | Durations) -> list[str]:
    """Return the sample lines of a metric: one line, or those of a histogram."""
    if not isinstance(figure, Durations):
        return [f"{name}{{{labels}}} {_format_value(figure)}"]
    counts = cumulative_counts(figure)
    lines = [
        f'{name}_bucket{{le="{bound}",{labels}}} {count}'
        for bound, count in zip(_BOUND_TEXTS, counts, strict=True)
    ]
    lines.append(f"{name}_count{{{labels}}} {counts[-1]}")
    lines.append(f"{name}_sum{{{labels}}} {_format_value(figure.sum_s)}")
    return lines


def join_lines(lines: list[str]) -> bytes:
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


# The metrics of an HTTP service's door as Prometheus text.
#
# Three tables define the metrics of the door, of each instance behind it, and of each agreement
# with a known status. All values come from the door's newest sample, so a scrape costs no time on
# the path of requests. Only ejections are counted here, because a sample says that an instance is
# ejected but not how often.
#
#     metrics.take(sample, statuses)     every second
#     metrics.text()                     b"# HELP tidegate_http_requests_total …"
#
# The buckets are those of nodes. A door reports no sums of durations. `_sum` therefore takes each
# duration as the middle of its bucket.


# The middle of a bucket, as a fraction of its upper bound.
_MIDDLE = (1.0 + upper_bound_s(0) / upper_bound_s(1)) / 2.0


class AgreementStats(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one agreement."""

    agreement: str
    # One of "met", "warned", "breached" and "no_data".
    verdict: str
    budget_left: float
    burn_rate: float | None = None


class InstanceStats(msgspec.Struct, frozen=True, kw_only=True):
    """The door's sample of an instance, and the number of its ejections."""

    seen: InstanceSample
    ejections: int = 0


VERDICTS = ("met", "warned", "breached", "no_data")

DOOR_METRICS: tuple[ExposedMetric[DoorSample], ...] = (
    ExposedMetric(
        "tidegate_http_requests_total",
        "counter",
        "Requests that the door admitted.",
        lambda door: door.accepted,
    ),
    ExposedMetric(
        "tidegate_http_answered_total",
        "counter",
        "Complete answers of instances that went to clients.",
        lambda door: door.answered,
    ),
    ExposedMetric(
        "tidegate_http_refused_total",
        "counter",
        "Requests whose client got no complete answer of an instance, because "
        "the door refused or aborted them.",
        lambda door: door.refused,
    ),
    ExposedMetric(
        "tidegate_http_in_flight_requests",
        "gauge",
        "Requests that the door processes.",
        lambda door: door.in_flight,
    ),
    ExposedMetric(
        "tidegate_http_waiting_requests",
        "gauge",
        "Requests that wait in the door for an instance.",
        lambda door: door.waiting,
    ),
    ExposedMetric(
        "tidegate_http_response_seconds",
        "histogram",
        "Time from a request to the end of its answer, as clients see it.",
        lambda door: durations_of(door.response),
    ),
    ExposedMetric(
        "tidegate_http_instances",
        "gauge",
        "Instances that the door knows, including spare and ejected ones.",
        lambda door: len(door.instances),
    ),
    ExposedMetric(
        "tidegate_http_troubled",
        "gauge",
        "1 while the door cannot perform one of its functions.",
        lambda door: bool(door.trouble),
    ),
)

INSTANCE_METRICS: tuple[ExposedMetric[InstanceStats], ...] = (
    ExposedMetric(
        "tidegate_http_instance_outstanding_requests",
        "gauge",
        "Requests that the instance has not answered.",
        lambda one: one.seen.outstanding,
    ),
    ExposedMetric(
        "tidegate_http_instance_sent_total",
        "counter",
        "Requests sent to the instance.",
        lambda one: one.seen.sent,
    ),
    ExposedMetric(
        "tidegate_http_instance_answered_total",
        "counter",
        "Requests that the instance answered.",
        lambda one: one.seen.answered,
    ),
    ExposedMetric(
        "tidegate_http_instance_server_errors_total",
        "counter",
        "Requests that the instance answered with a status of 500 or above.",
        lambda one: one.seen.server_errors,
    ),
    ExposedMetric(
        "tidegate_http_instance_failed_total",
        "counter",
        "Requests without a complete answer of the instance.",
        lambda one: one.seen.failed,
    ),
    ExposedMetric(
        "tidegate_http_instance_service_seconds",
        "histogram",
        "Time from sending a request to the instance to the end of its answer.",
        lambda one: durations_of(one.seen.response),
    ),
    ExposedMetric(
        "tidegate_http_instance_ejected",
        "gauge",
        "1 while the instance is out of the balancing.",
        lambda one: one.seen.ejected is not None,
    ),
    ExposedMetric(
        "tidegate_http_instance_ejections_total",
        "counter",
        "Number of times that the instance was ejected from the balancing.",
        lambda one: one.ejections,
    ),
)

AGREEMENT_METRICS: tuple[ExposedMetric[AgreementStats], ...] = (
    ExposedMetric(
        "tidegate_agreement_budget_left",
        "gauge",
        "Remaining part of the error budget: 1 is untouched, below 0 is overdrawn.",
        lambda one: one.budget_left,
    ),
    ExposedMetric(
        "tidegate_agreement_burn_rate",
        "gauge",
        "Use of the error budget in the last hour as a multiple of the allowed "
        "rate; 0 without data.",
        lambda one: one.burn_rate or 0.0,
    ),
)

RESPONSES: ExposedMetric[int] = ExposedMetric(
    "tidegate_http_responses_total",
    "counter",
    "Answers to clients by the class of their status, including answers of the door itself.",
    lambda count: count,
)
VERDICT: ExposedMetric[bool] = ExposedMetric(
    "tidegate_agreement_verdict",
    "gauge",
    "1 for the verdict on the newest window, 0 for the others.",
    lambda holds: holds,
)


class DoorMetrics:
    """The newest sample of one door, its ejection counts and the status of its agreements."""

    def __init__(self) -> None:
        self._sample: DoorSample | None = None
        self._standings: tuple[AgreementStats, ...] = ()
        self._ejections: dict[int, int] = {}

    def update(self, sample: DoorSample, standings: Iterable[AgreementStats] = ()) -> None:
        """Store the newest sample of the door, and the status of its agreements if known."""
        was_out = (
            {one.instance_id: one.ejected is not None for one in self._sample.instances}
            if self._sample
            else {}
        )
        self._ejections = {
            one.instance_id: self._ejections.get(one.instance_id, 0)
            + (one.ejected is not None and not was_out.get(one.instance_id, False))
            for one in sample.instances
        }
        self._sample, self._standings = sample, tuple(standings)

    def text(self) -> bytes:
        """Return all metrics as text; empty before the first sample."""
        sample = self._sample
        return b"" if sample is None else join_lines(list(self._lines(sample)))

    def _lines(self, sample: DoorSample) -> Iterator[str]:
        of_door = {"service": sample.service, "door": sample.door}
        labels = label_text(of_door)
        for shown in DOOR_METRICS:
            yield from metric_header(shown)
            yield from metric_lines(shown.name, labels, shown.read(sample))
        yield from _by_label(RESPONSES, of_door, "class", sample.by_class)
        instances = [
            (
                label_text({**of_door, "instance": str(one.instance_id)}),
                InstanceStats(seen=one, ejections=self._ejections[one.instance_id]),
            )
            for one in sample.instances
        ]
        for of_instance in INSTANCE_METRICS:
            yield from metric_header(of_instance)
            for labels, numbers in instances:
                yield from metric_lines(of_instance.name, labels, of_instance.read(numbers))
        if self._standings:
            yield from _standing_lines(self._standings)


def _standing_lines(standings: Iterable[AgreementStats]) -> Iterator[str]:
    for shown in AGREEMENT_METRICS:
        yield from metric_header(shown)
        for one in standings:
            labels = label_text({"agreement": one.agreement})
            yield from metric_lines(shown.name, labels, shown.read(one))
    yield from metric_header(VERDICT)
    for one in standings:
        for verdict in VERDICTS:
            labels = label_text({"agreement": one.agreement, "verdict": verdict})
            yield from metric_lines(VERDICT.name, labels, VERDICT.read(verdict == one.verdict))


def _by_label(
    shown: ExposedMetric[int], labels: Mapping[str, str], name: str, counts: Mapping[str, int]
) -> Iterator[str]:
    if counts:
        yield from metric_header(shown)
    for value, count in sorted(counts.items()):
        yield from metric_lines(shown.name, label_text({**labels, name: value}), shown.read(count))


def durations_of(bounds: Bounds) -> Durations:
    """Return durations, given as pairs of upper bound and count, as a histogram."""
    return Durations(
        count=sum(count for _, count in bounds),
        buckets=list(bounds),
        sum_s=sum(_MIDDLE * min(bound_s, LARGEST_S) * count for bound_s, count in bounds),
    )


def door_metrics_table() -> str:
    """Return the metrics as a Markdown table for the docs."""
    of_door, of_instance = "`service`, `door`", "`service`, `door`, `instance`"
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    rows += [table_row(shown, of_door) for shown in DOOR_METRICS]
    rows.append(table_row(RESPONSES, f"{of_door}, `class`"))
    rows += [table_row(shown, of_instance) for shown in INSTANCE_METRICS]
    rows += [table_row(shown, "`agreement`") for shown in AGREEMENT_METRICS]
    rows.append(table_row(VERDICT, "`agreement`, `verdict`"))
    return "\n".join(rows)
