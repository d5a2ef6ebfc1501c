"""RabbitMQ with pika's blocking connection: one confirmed publish at a time."""

from __future__ import annotations

import time

import pika

from tidegate_lab.loadgen.processes import ConsumerSide, ProducerSide, make_payload

PREFETCH = 200


def produce(side: ProducerSide) -> None:
    """Publish all messages, each confirmed before the next."""
    connection = _connect(side.work.port)
    channel = connection.channel()
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
    side.wait_for_go()
    for sequence in range(side.work.messages):
        sent_ns = time.monotonic_ns()
        payload = make_payload(sequence, sent_ns)
        channel.basic_publish("", side.work.queue, payload, persistent)
        side.confirmed(sent_ns)
    side.confirmed_all()
    connection.close()


def consume(side: ConsumerSide) -> None:
    """Consume all messages with one acknowledgement for each."""
    work = side.work
    connection = _connect(work.port)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.queue_declare(
        work.queue, durable=True, arguments={"x-queue-type": work.settings["queue_type"]}
    )

    def handle(
        channel: pika.adapters.blocking_connection.BlockingChannel,
        method: pika.spec.Basic.Deliver,
        _properties: pika.BasicProperties,
        payload: bytes,
    ) -> None:
        side.handle(payload)
        channel.basic_ack(method.delivery_tag)
        if side.complete:
            channel.stop_consuming()

    channel.basic_consume(work.queue, handle)
    side.ready()
    channel.start_consuming()
    side.acknowledged_all()
    channel.queue_delete(work.queue)
    connection.close()


def _connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
