"""Numbers as Prometheus text: read back by Prometheus's own parser, exact to the last bucket."""

from __future__ import annotations

import math

import pytest
from http_get import families
from hypothesis import given
from hypothesis import strategies as st

from tidegate.telemetry.meters import Histogram
from tidegate.telemetry.prometheus import (
    BOUNDS_S,
    NODE_METRICS,
    QUEUE_METRICS,
    NodeMetrics,
    cumulative_counts,
)
from tidegate.telemetry.stats import Durations, NodeStats, PhaseStats, QueueStats, make_durations

NOTHING = Durations()


def a_queue(name: str, queue_id: int = 1, wait: Durations = NOTHING) -> QueueStats:
    return QueueStats(
        queue_id=queue_id,
        name=name,
        durable=True,
        epoch=1,
        waiting=3,
        waiting_in_store=0,
        unacknowledged=2,
        oldest_age_s=1.5,
        resident_bytes=100,
        put=5,
        delivered=2,
        acked=0,
        returned=0,
        redelivered=0,
        refused=0,
        put_per_s=0.0,
        delivered_per_s=0.0,
        acked_per_s=0.0,
        readers_waiting=0,
        wait=wait,
        service=NOTHING,
        consumers=[],
    )


def a_node(*queues: QueueStats) -> NodeStats:
    return NodeStats(
        member_id=1,
        name="node-1",
        address="tidegate://127.0.0.1:7411",
        uptime_s=12.0,
        connections=1,
        memory_bound_bytes=1,
        memory_resident_bytes=1,
        process_memory_bytes=1,
        process_cpu_s=1.0,
        commits=4,
        commit=NOTHING,
        messages_per_commit=1.25,
        packets_in=10,
        packets_out=10,
        queues=list(queues),
        phases=PhaseStats(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING),
    )


def text_of(node: NodeStats) -> bytes:
    return b"".join(NodeMetrics().pieces(node))


def test_every_metric_of_the_tables_is_there_with_its_kind_and_what_it_says() -> None:
    found = families(text_of(a_node(a_queue("orders"))))

    tables = [*NODE_METRICS, *QUEUE_METRICS]
    assert set(found) == {shown.name for shown in tables}
    for shown in tables:
        assert (found[shown.name].type, found[shown.name].documentation) == (shown.kind, shown.says)
    (waiting,) = found["tidegate_queue_waiting_messages"].samples
    assert (waiting.labels, waiting.value) == ({"node": "node-1", "queue": "orders"}, 3.0)
    (confirmed,) = found["tidegate_queue_confirmed_total"].samples
    assert confirmed.value == 5.0


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5, unique=True))
def test_a_queue_may_be_called_anything(names: list[str]) -> None:
    found = families(text_of(a_node(*(a_queue(name) for name in names))))

    samples = found["tidegate_queue_waiting_messages"].samples
    assert [sample.labels["queue"] for sample in samples] == names


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a}b", "a b", "ü, {x}", "a\u2028b"])
def test_label_values_are_escaped(name: str) -> None:
    found = families(text_of(a_node(a_queue(name))))

    (sample,) = found["tidegate_queue_oldest_age_seconds"].samples
    assert (sample.labels["queue"], sample.value) == (name, 1.5)


@given(st.lists(st.floats(0.0, 4000.0), max_size=60))
def test_counts_of_buckets_are_exact(sample: list[float]) -> None:
    # A bound belongs to one of two neighbours of the live histogram; nothing else is in doubt.
    sample = [s for s in sample if not any(math.isclose(s, b, rel_tol=1e-6) for b in BOUNDS_S)]
    histogram = Histogram()
    for duration_s in sample:
        histogram.add(duration_s)

    counts = cumulative_counts(make_durations(histogram))

    assert counts[:-1] == [sum(s <= bound for s in sample) for bound in BOUNDS_S]
    assert counts[-1] == len(sample)


def test_half_an_hour_is_the_last_bound_and_what_takes_longer_is_counted_beyond() -> None:
    histogram = Histogram()
    histogram.add(1800.0)
    histogram.add(1801.0)
    histogram.add(86400.0)
    wait = make_durations(histogram)

    found = families(text_of(a_node(a_queue("orders", wait=wait))))

    samples = {
        (one.name.removeprefix("tidegate_queue_wait_seconds_"), one.labels.get("le")): one.value
        for one in found["tidegate_queue_wait_seconds"].samples
    }
    assert samples["bucket", "1073.741824"] == 0
    assert samples["bucket", "1800.0"] == 1
    assert samples["bucket", "+Inf"] == samples["count", None] == 3
    assert samples["sum", None] == 1800.0 + 1801.0 + 86400.0


def test_many_queues_come_in_pieces_and_each_metric_in_one_block() -> None:
    node = a_node(*(a_queue(f"queue-{n}", n) for n in range(300)))

    pieces = list(NodeMetrics().pieces(node))

    assert max(piece.count(b"\n") for piece in pieces) < 600
    text = b"".join(pieces)
    assert text.count(b"# TYPE ") == len(NODE_METRICS) + len(QUEUE_METRICS)
    found = families(text)
    assert len(found["tidegate_queue_waiting_messages"].samples) == 300
    assert len(found["tidegate_queue_wait_seconds"].samples) == 300 * (len(BOUNDS_S) + 3)


def test_labels_of_queues_that_are_gone_are_forgotten() -> None:
    exposition = NodeMetrics()
    for n in range(50):
        b"".join(exposition.pieces(a_node(a_queue(f"queue-{n}"))))
    assert len(exposition._labels) == 1
