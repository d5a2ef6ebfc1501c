"""RabbitMQ at its own limit, with pre-encoded frames on a raw socket instead of a client library.

The producer builds all frames before the clock starts, and sends them in large writes as long as
the number of unconfirmed publishes allows. The consumer acknowledges all messages of a read with
one frame. The throughput is the same with 1,000 to 4,000 unconfirmed messages, and with a prefetch
from 500 to unlimited. So it is the broker's limit, not that of these settings.
"""

from __future__ import annotations

import select
import time

from tidegate_lab.loadgen.processes import (
    PACE_TICK_S,
    PAYLOAD_BYTES,
    ConsumerSide,
    ProducerSide,
    make_payload,
)
from tidegate_lab.peers.amqp import (
    FRAME_END,
    ConfirmReader,
    DeliveryReader,
    RawConnection,
    acknowledge_up_to,
    publish_prefix,
)

PUBLISHES_PER_WRITE = 100
PREFETCH = 1000


def produce(side: ProducerSide) -> None:
    """Publish all messages, each confirmed."""
    connection = RawConnection(side.work.port)
    connection.select_confirms()
    if side.work.mode == "throughput":
        _produce_at_full_speed(side, connection)
    else:
        _produce_paced(side, connection)
    side.confirmed_all()
    connection.close()


def consume(side: ConsumerSide) -> None:
    """Consume and acknowledge all messages."""
    work = side.work
    connection = RawConnection(work.port)
    connection.declare_queue(work.queue, {"x-queue-type": work.settings["queue_type"]})
    connection.set_prefetch(PREFETCH)
    connection.consume(work.queue)
    side.ready()
    reader = DeliveryReader(work.queue, PAYLOAD_BYTES)
    while not side.complete:
        before = side.checker.received
        for payload in reader.feed(connection.receive()):
            side.handle(payload)
        # Delivery tags count from 1, so the number of received messages is the last tag.
        if side.checker.received > before:
            connection.socket.sendall(acknowledge_up_to(side.checker.received))
    connection.set_prefetch(PREFETCH)  # Its answer comes after the broker took the last ack.
    side.acknowledged_all()
    connection.delete_queue(work.queue)
    connection.close()


def _produce_at_full_speed(side: ProducerSide, connection: RawConnection) -> None:
    work = side.work
    prefix = publish_prefix(work.queue, PAYLOAD_BYTES)
    frames = [prefix + make_payload(number, 0) + FRAME_END for number in range(work.messages)]
    writes = [
        b"".join(frames[start : start + PUBLISHES_PER_WRITE])
        for start in range(0, work.messages, PUBLISHES_PER_WRITE)
    ]
    del frames
    confirms = ConfirmReader()
    sent = 0
    side.wait_for_go()
    for write in writes:
        while sent + PUBLISHES_PER_WRITE - confirms.confirmed > work.in_flight:
            for _ in confirms.feed(connection.receive()):
                pass
        connection.socket.sendall(write)
        sent += PUBLISHES_PER_WRITE
    while confirms.confirmed < work.messages:
        for _ in confirms.feed(connection.receive()):
            pass


def _produce_paced(side: ProducerSide, connection: RawConnection) -> None:
    work = side.work
    prefix = publish_prefix(work.queue, PAYLOAD_BYTES)
    confirms = ConfirmReader()
    sent_ns = [0] * (work.messages + 1)  # Confirms count from one.
    sent = 0
    side.wait_for_go()
    begun_s = time.monotonic()
    next_tick_s = begun_s
    while confirms.confirmed < work.messages:
        now_s = time.monotonic()
        if now_s >= next_tick_s and sent < work.messages:
            for sequence in range(sent, side.due_after(now_s - begun_s)):
                sent_ns[sequence + 1] = time.monotonic_ns()
                payload = make_payload(sequence, sent_ns[sequence + 1])
                connection.socket.sendall(prefix + payload + FRAME_END)
                sent += 1
            side.check_backlog(sent - confirms.confirmed)
            next_tick_s += PACE_TICK_S
        wait_s = max(0.0, next_tick_s - time.monotonic()) if sent < work.messages else None
        if select.select([connection.socket], [], [], wait_s)[0]:
            for tag in confirms.feed(connection.receive()):
                side.confirmed(sent_ns[tag])
