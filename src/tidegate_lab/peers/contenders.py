"""The contenders of the comparison, by the names that the report gives them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from tidegate_lab.peers.servers import (
    PeerServer,
    nats_server,
    rabbitmq_server,
    redis_server,
    tidegate_server,
)

# The tasks that each await one put at a time, or the unconfirmed messages on a raw socket.
IN_FLIGHT = 1000

SERVERS: dict[str, Callable[[], AbstractContextManager[PeerServer]]] = {
    "tidegate": tidegate_server,
    "rabbitmq": rabbitmq_server,
    "redis": redis_server,
    "nats": nats_server,
}


class Contender(msgspec.Struct, frozen=True):
    """A server and the client module that drives it."""

    name: str
    server: str
    module: str
    in_flight: int = IN_FLIGHT
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    # False if the client cannot keep a fixed rate, because it waits for every confirmation.
    offers_rate: bool = True

    @property
    def is_ours(self) -> bool:
        """Whether the server is Tidegate."""
        return self.server == "tidegate"


def _rabbitmq(name: str, module: str, queue_type: str, **changes: object) -> Contender:
    contender = Contender(
        name=f"rabbitmq {name} {queue_type}",
        server="rabbitmq",
        module=f"tidegate_lab.peers.{module}",
        settings={"queue_type": queue_type},
    )
    return msgspec.structs.replace(contender, **changes)


TIDEGATE = "tidegate"
TIDEGATE_BATCH = "tidegate batch"
TIDEGATE_LONE = "tidegate one at a time"

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(TIDEGATE, "tidegate", "tidegate_lab.peers.tidegate_messages"),
        Contender(
            TIDEGATE_BATCH, "tidegate", "tidegate_lab.peers.tidegate_batches", offers_rate=False
        ),
        Contender(
            TIDEGATE_LONE,
            "tidegate",
            "tidegate_lab.peers.tidegate_messages",
            in_flight=1,
            offers_rate=False,
        ),
        _rabbitmq("raw", "rabbitmq_raw", "classic"),
        _rabbitmq("raw", "rabbitmq_raw", "quorum"),
        _rabbitmq("aio-pika", "rabbitmq_aio_pika", "classic"),
        _rabbitmq("aio-pika", "rabbitmq_aio_pika", "quorum"),
        _rabbitmq("pika", "rabbitmq_pika", "classic", in_flight=1, offers_rate=False),
        _rabbitmq("pika", "rabbitmq_pika", "quorum", in_flight=1, offers_rate=False),
        Contender("redis streams", "redis", "tidegate_lab.peers.redis_streams"),
        Contender("redis streams raw", "redis", "tidegate_lab.peers.redis_raw", offers_rate=False),
        Contender("nats jetstream", "nats", "tidegate_lab.peers.nats_jetstream"),
    )
}
