"""Queue ids by name, and pushes to members of logical queues, without a client and a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.client.directory import QueueDirectory, QueueMembership
from tidegate.core.errors import TidegateError
from tidegate.core.model import QueueInfo
from tidegate.core.topology import MemberRole, Scaling, Topology
from tidegate.protocol.catalogue import GetQueueId, GetQueueIdResponse
from tidegate.protocol.cluster import Migrated, TopologyChanged

ORDERS = QueueInfo(7, "orders")
LOGICAL_ORDERS = QueueInfo(7, "orders", elastic=True)


class Catalogue:
    """A connection to a node that has one queue."""

    def __init__(self) -> None:
        self.queue = ORDERS
        self.requests: list[Any] = []

    async def request(self, packet: Any) -> Any:
        self.requests.append(packet)
        return SimpleNamespace(packet=GetQueueIdResponse(self.queue))


class Member:
    """A producer or subscription that counts what its membership tells it."""

    def __init__(self) -> None:
        self.topologies = 0

    def on_topology(self) -> None:
        self.topologies += 1

    def on_join_refused(self, error: TidegateError) -> None:
        raise AssertionError("no join was sent") from error


def _directory() -> tuple[Catalogue, QueueDirectory]:
    catalogue: Any = Catalogue()
    return catalogue, QueueDirectory(catalogue)


def _membership(queues: QueueDirectory, queue_id: int, number: int) -> tuple[Member, Any]:
    member, connection = Member(), SimpleNamespace()
    membership = QueueMembership(
        connection,  # type: ignore[arg-type]
        queues,
        member,
        queue_id,
        MemberRole.CONSUMER,
        number,
    )
    queues.memberships.append(membership)
    return member, membership


async def test_queue_id_is_looked_up_once_until_it_is_forgotten() -> None:
    catalogue, queues = _directory()
    assert [await queues.id_of("orders"), await queues.id_of("orders")] == [7, 7]
    assert await queues.id_of(7) == 7
    assert len(catalogue.requests) == 1

    queues.forget("orders")

    assert await queues.id_of("orders") == 7
    assert [type(request) for request in catalogue.requests] == [GetQueueId, GetQueueId]


async def test_queue_id_is_forgotten_with_the_deleted_queue() -> None:
    _, queues = _directory()
    await queues.find("orders")
    queues.note(QueueInfo(8, "letters"))

    queues.forget_id(7)

    assert queues.ids == {"letters": 8}


def test_queue_is_logical_as_of_the_latest_look_up() -> None:
    _, queues = _directory()
    queues.note(LOGICAL_ORDERS)
    assert queues.logical_ids == {7}

    queues.note(ORDERS)

    assert queues.logical_ids == set()


def test_topology_reaches_the_members_of_its_queue_only() -> None:
    _, queues = _directory()
    here, _ = _membership(queues, 7, 1)
    elsewhere, _ = _membership(queues, 8, 1)

    queues.on_push(TopologyChanged(Topology(7, "orders", 1, Scaling())))

    assert (here.topologies, elsewhere.topologies) == (1, 0)


def test_move_reaches_the_named_member_until_its_membership_ends() -> None:
    _, queues = _directory()
    first, membership = _membership(queues, 7, 1)
    second, _ = _membership(queues, 7, 2)
    move = Migrated(7, MemberRole.CONSUMER, 1, 70)

    queues.on_push(move)
    assert (first.topologies, second.topologies, membership.replica_id) == (1, 0, 70)

    membership.end()
    queues.on_push(move)
    assert first.topologies == 1
