"""The RabbitMQ of our tests: hosts apart, users with fewer rights, killed and started again."""

from __future__ import annotations

import aio_pika
import aiormq.exceptions
import pytest
from rabbitmq import VirtualHost

from tidegate.lab.peers.rabbitmq_server import RabbitmqServer


async def test_what_is_in_one_virtual_host_is_invisible_in_another(
    rabbitmq: VirtualHost, rabbitmq_broker: RabbitmqServer
) -> None:
    other = VirtualHost(rabbitmq_broker)
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders")

        assert (list(rabbitmq.queues()), list(other.queues())) == (["orders"], [])
    other.delete()


async def test_a_user_may_do_what_it_was_given_and_no_more(rabbitmq: VirtualHost) -> None:
    async with await aio_pika.connect(rabbitmq.user(configure="mine")) as connection:
        await (await connection.channel()).declare_queue("mine")
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
            await (await connection.channel()).declare_queue("theirs")


async def test_a_killed_broker_is_back_where_it_was_with_what_it_had_confirmed(
    mortal_broker: RabbitmqServer,
) -> None:
    host = VirtualHost(mortal_broker)
    async with await aio_pika.connect(host.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders", durable=True)
        lasting = aio_pika.Message(b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(lasting, "orders")
        mortal_broker.kill()
        mortal_broker.start_again()

    async with await aio_pika.connect(host.url) as connection:
        queue = await (await connection.channel()).get_queue("orders")
        assert (await queue.get()).body == b"x"
    host.delete()
