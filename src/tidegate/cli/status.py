"""The live stats as tables of nodes, queues and consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from tidegate.cli.figures import count, milliseconds, seconds, size
from tidegate.cli.output import Cell, Column, terminal_table
from tidegate.core.replication import logical_name

if TYPE_CHECKING:
    from tidegate.telemetry.numbers import ClusterNumbers, ConsumerNumbers, QueueNumbers

TableParts = tuple[str, Sequence[Column], list[list[Cell]]]

_NODES = [
    Column("id", right=True, style="dim"),
    Column("node", style="bold"),
    Column("address"),
    Column("up", shown=seconds, right=True, spare=True),
    Column("connections", shown=count, right=True, spare=True),
    Column("memory", shown=size, right=True),
    Column("of it waiting", shown=size, right=True, spare=True),
    Column("commits", shown=count, right=True, spare=True),
    Column("per commit", shown=lambda figure: f"{figure:.1f}", right=True, spare=True),
    Column("commit p50", shown=milliseconds, right=True, spare=True),
    Column("commit p99", shown=milliseconds, right=True, spare=True),
    Column("rows recorded", shown=count, right=True, spare=True),
    Column("rows dropped", shown=count, right=True, spare=True),
    Column("metrics", spare=True),
]
_QUEUES = [
    Column("queue", style="bold"),
    Column("node", spare=True),
    Column("in/s", shown=count, right=True),
    Column("out/s", shown=count, right=True),
    Column("acked/s", shown=count, right=True, spare=True),
    Column("waiting", shown=count, right=True),
    Column("unacked", shown=count, right=True),
    Column("oldest", shown=seconds, right=True),
    Column("wait p50", shown=milliseconds, right=True, spare=True),
    Column("wait p99", shown=milliseconds, right=True),
    Column("put in all", shown=count, right=True, spare=True),
    Column("redelivered", shown=count, right=True, spare=True),
    Column("delayed", shown=count, right=True, spare=True),
    Column("dead", shown=count, right=True, spare=True),
    Column("expired", shown=count, right=True, spare=True),
    Column("consumers", shown=count, right=True),
    Column("prefetch goal", spare=True),
]
_CONSUMERS = [
    Column("consumer", style="bold"),
    Column("number", right=True, style="dim", spare=True),
    Column("queue"),
    Column("prefetch", shown=count, right=True),
    Column("steered", spare=True),
    Column("unacked", shown=count, right=True),
    Column("out/s", shown=count, right=True),
    Column("acked/s", shown=count, right=True, spare=True),
    Column("acked in all", shown=count, right=True, spare=True),
    Column("service p50", shown=milliseconds, right=True),
    Column("service p99", shown=milliseconds, right=True, spare=True),
]


def tables(cluster: ClusterNumbers) -> list[TableParts]:
    """Return title, columns and rows of each table that has rows."""
    parts: list[TableParts] = [
        ("Nodes", _NODES, _node_rows(cluster)),
        ("Queues", _QUEUES, _queue_rows(cluster)),
        ("Consumers", _CONSUMERS, _consumer_rows(cluster)),
    ]
    return [part for part in parts if part[2]]


def screen(cluster: ClusterNumbers, width: int) -> RenderableType:
    """Return the tables below each other, for a live view."""
    parts = tables(cluster)
    return Group(
        *(terminal_table(columns, rows, title, width=width) for title, columns, rows in parts)
    )


def _node_rows(cluster: ClusterNumbers) -> list[list[Cell]]:
    return [
        [
            node.member_id,
            node.name,
            node.address,
            node.uptime_s,
            node.connections,
            node.process_memory_bytes,
            node.memory_resident_bytes,
            node.commits,
            node.messages_per_commit,
            node.commit.p50_ms,
            node.commit.p99_ms,
            node.rows_recorded,
            node.rows_dropped,
            node.metrics_address,
        ]
        for node in cluster.nodes
    ]


def _queue_rows(cluster: ClusterNumbers) -> list[list[Cell]]:
    # List the replicas below their logical queue, in numeric order.
    return [
        [
            f"{_title(queue)} (paused)" if queue.paused else _title(queue),
            node.name,
            queue.put_per_s,
            queue.delivered_per_s,
            queue.acked_per_s,
            queue.waiting,
            queue.unacknowledged,
            queue.oldest_age_s,
            queue.wait.p50_ms,
            queue.wait.p99_ms,
            queue.put,
            queue.redelivered,
            queue.delayed,
            queue.dead_lettered,
            queue.expired,
            len(queue.consumers),
            queue.prefetch_goal or None,
        ]
        for node, queue in sorted(
            ((node, queue) for node in cluster.nodes for queue in node.queues),
            key=lambda served: by_name(served[1].name),
        )
    ]


def _title(queue: QueueNumbers) -> str:
    """Return a queue's name as errors give it: `orders, replica 2`."""
    if not queue.alias_id:
        return queue.name
    logical, number = by_name(queue.name)
    return f"{logical}, replica {number}"


def by_name(name: str) -> tuple[str, int]:
    """Return the sort key of a queue: the logical queue, and the number of the replica."""
    logical = logical_name(name)
    return logical, int(name[len(logical) + 1 :] or 0)


def _steered(consumer: ConsumerNumbers) -> str | None:
    """Return how the prefetch is controlled; None if the consumer sets it itself."""
    if consumer.trial_by:
        return f"tried out by {consumer.trial_by}"
    if not consumer.control:
        return None
    step = consumer.control[-1]
    target = "" if step.target_per_s is None else f" to {step.target_per_s:.0f}/s"
    limit = f", at its {step.saturated} limit" if step.saturated else ""
    return f"{step.mode}{target}{limit}"


def _consumer_rows(cluster: ClusterNumbers) -> list[list[Cell]]:
    return [
        [
            consumer.client_name,
            consumer.consumer,
            _title(queue),
            consumer.prefetch,
            _steered(consumer),
            consumer.unacknowledged,
            consumer.delivered_per_s,
            consumer.acked_per_s,
            consumer.acked,
            consumer.service.p50_ms,
            consumer.service.p99_ms,
        ]
        for node in cluster.nodes
        for queue in node.queues
        for consumer in queue.consumers
    ]
