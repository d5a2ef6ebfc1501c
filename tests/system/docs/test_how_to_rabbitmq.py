"""The how-to about a RabbitMQ that one has is done on a real one, block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import DOCS
from rabbitmq import VirtualHost
from reader import Reader

PAGE = DOCS / "how-to" / "my-rabbitmq.md"


@pytest.mark.timeout(900)
def test_a_reader_points_it_at_a_rabbitmq(rabbitmq: VirtualHost, folder: Path) -> None:
    plain = rabbitmq.url.replace("guest:guest@", "guest@")
    reader = Reader(
        folder,
        names={
            "amqp://guest:guest@127.0.0.1:5672/": rabbitmq.url,
            "amqp://mq.example/": f"{plain} --management {rabbitmq.management_url}",
        },
        # It would go before what the application says.
        environment={"TIDEGATE_URL": None},
    )
    try:
        said = reader.read(PAGE)
    finally:
        reader.end()

    assert "shipped tea" in said
    assert not [name for name in rabbitmq.queues() if "#" in name]
