"""Parts of a node that are made without the node: the events that they announce."""

from __future__ import annotations

from tidegate.broker.access import Accounts
from tidegate.broker.context import NodeContext, NodeEvents, NodeIdentity, NodeTasks
from tidegate.broker.ownership import NodeLease, Ownership
from tidegate.broker.relay import NodeClients
from tidegate.broker.replica import Replica
from tidegate.core.errors import StaleEpoch
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.core.segment import Budget
from tidegate.core.store import Clock
from tidegate.storage.memory import MemoryStore
from tidegate.storage.writer import Writers
from tidegate.telemetry.meters import NodeMeters

LEASE_S = 3.0


class Parts:
    """A lease and the ownership of queues, with a clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0
        clock = Clock(lambda: 1_700_000_000.0 + self.now_s, lambda: 5000.0 + self.now_s)
        self.store = MemoryStore(clock)
        self.context = NodeContext(
            store=self.store,
            clock=clock,
            limits=NodeLimits(lease_s=LEASE_S),
            budget=Budget(1 << 20),
            identity=NodeIdentity("here"),
            meters=NodeMeters(),
            tasks=NodeTasks(),
            events=NodeEvents(),
        )
        self.lease = NodeLease(self.context)
        clients = NodeClients(Accounts(self.context, login_always=False), None)
        self.ownership = Ownership(self.context, self.lease, clients, Writers(self.store, 1))

    async def serve_queue(self, name: str) -> Replica:
        await self.lease.join()
        queue = await self.store.create_queue(name, True, QueuePolicy())
        assert queue is not None
        replica = await self.ownership.route(queue.queue_id)
        assert isinstance(replica, Replica)
        return replica


async def test_ownership_serves_a_queue_after_its_claim_was_announced() -> None:
    parts = Parts()
    served_at_claim: list[bool] = []
    served: list[Replica] = []

    async def claimed(replica: Replica) -> None:
        served_at_claim.append(replica.info.queue_id in parts.ownership.replicas)

    parts.context.events.queue_claimed.append(claimed)
    parts.context.events.queue_served.append(lambda replica, owner, _: served.append(replica))

    replica = await parts.serve_queue("orders")

    assert served_at_claim == [False]
    assert served == [replica]
    assert parts.ownership.replicas == {replica.info.queue_id: replica}


async def test_ownership_drops_a_replica_when_its_release_is_announced() -> None:
    parts = Parts()
    parts.context.events.queue_released.append(parts.ownership.remove)
    replica = await parts.serve_queue("orders")

    replica.fence(StaleEpoch("another node owns it"))

    assert not parts.ownership.replicas


async def test_lost_lease_fences_all_queues_before_the_node_joins_again() -> None:
    # Given a node that owns a queue
    parts = Parts()
    events = parts.context.events
    told: list[tuple[str, int]] = []
    identity = parts.context.identity
    events.lease_lost += [
        parts.ownership.lease_lost,
        lambda: told.append(("lost", identity.member_id)),
    ]
    events.rejoined.append(lambda: told.append(("rejoined", identity.member_id)))
    replica = await parts.serve_queue("orders")
    before = identity.member_id

    # When the node was declared dead
    parts.now_s += 2 * LEASE_S
    assert not parts.lease.may_deliver()
    await parts.store.leave(before)
    await parts.lease.renew()

    # Then the queue is dropped, and the node has a new number
    assert replica.fenced
    assert told == [("lost", before), ("rejoined", identity.member_id)]
    assert identity.member_id != before
    assert parts.lease.may_deliver()
