"""The RabbitMQ of our tests: hosts apart, users with fewer rights."""

from __future__ import annotations

import aio_pika
import aiormq.exceptions
import pytest
from rabbitmq import VirtualHost

from tidegate_lab.peers.servers import RabbitmqServer


async def test_virtual_hosts_are_separate(
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
