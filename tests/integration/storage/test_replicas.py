"""Logical queues in the store: replicas come, get shares and homes, move messages, and end."""

from __future__ import annotations

import asyncio
import time

import pytest
from backing import SEVERAL_STORES, STORES, Backing

from tidegate.core.errors import ChangedMeanwhile, InvalidValue, StaleEpoch
from tidegate.core.machines import MachineState
from tidegate.core.model import Overflow, QueueInfo, QueuePolicy
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.segment import Segment
from tidegate.core.store import FailedDelivery, Settlement, Store, Write
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    Range,
    ReplicaInfo,
    ReplicaState,
    Scaling,
    SegmentMove,
    Topology,
)

pytestmark = pytest.mark.parametrize("backing", [*STORES, *SEVERAL_STORES], indirect=True)

SCALING = Scaling(replicas=Range(1, 4), worker="shop.jobs:app")


class Fleet:
    """A member that leads and owns, and an alias of which it makes replicas."""

    def __init__(self, store: Store, member_id: int, epoch: int, alias: QueueInfo) -> None:
        self.store = store
        self.member_id = member_id
        self.leader_epoch = epoch
        self.alias = alias
        self.alias_id = alias.queue_id
        self.epochs: dict[int, int] = {}

    async def add(self, **where: int | None) -> ReplicaInfo:
        place = await self.store.add_replica(self.alias_id, self.leader_epoch, **where)
        assert place is not None
        return place

    async def claim(self, queue_id: int) -> int:
        claim = await self.store.claim(queue_id, self.member_id)
        assert claim is not None
        self.epochs[queue_id] = claim.epoch
        return claim.epoch

    async def serve(self, **where: int | None) -> ReplicaInfo:
        place = await self.add(**where)
        await self.claim(place.queue_id)
        return place

    async def topology(self) -> Topology:
        topology = await self.store.topology(self.alias_id)
        assert topology is not None
        return topology

    async def put(
        self,
        queue_id: int,
        first_id: int,
        count: int = 3,
        batch: int = 1,
        arrived_at: float = 1_700_000_000.25,
        **more: object,
    ) -> bool:
        segment = Segment(
            queue_id=queue_id,
            first_id=first_id,
            priority=5,
            arrived_at=arrived_at,
            lengths=[2] * count,
            payload=b"".join(b"%02d" % (each % 100) for each in range(count)),
            senders=[1],
        )
        future: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

        def done(outcome: list[bool] | Exception) -> None:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        write = Write(segment, self.epochs[queue_id], [77], [batch], **more)  # type: ignore[arg-type]
        self.store.submit([write], done)
        return (await future)[0]

    async def stored(self, queue_id: int) -> list[Segment]:
        return await self.store.read_lane(queue_id, 5, False, 0, 2**62, 1000, 2**40)

    def move(
        self, move_id: str, source: int, target: int, first_ids: list[int], new: list[int]
    ) -> SegmentMove:
        epochs = self.epochs
        return SegmentMove(move_id, source, epochs[source], target, epochs[target], first_ids, new)


@pytest.fixture
async def fleet(store: Store) -> Fleet:
    alias = await store.create_queue("orders", True, QueuePolicy(deliveries_max=7))
    assert alias is not None
    member_id = await store.join("owner", "tidegate://there:1", 60.0)
    epoch = await store.lead(member_id)
    assert epoch is not None
    assert await store.set_scaling(alias.queue_id, SCALING)
    return Fleet(store, member_id, epoch, alias)


async def test_of_two_who_scale_a_queue_at_once_the_second_is_told(fleet: Fleet) -> None:
    store, alias_id = fleet.store, fleet.alias_id
    # What somebody writes in the middle of the night, in all its parts.
    wider = Scaling(replicas=Range(1, 8), max_load=123.4, shares={1: 0.1, 2: 0.9}, sla_delta=0.3)
    assert await store.set_scaling(alias_id, wider, SCALING)
    with pytest.raises(ChangedMeanwhile, match="somebody else"):
        await store.set_scaling(alias_id, Scaling(replicas=Range(1, 2)), SCALING)
    with pytest.raises(ChangedMeanwhile):
        await store.set_scaling(alias_id, Scaling(), None)
    said = await asyncio.gather(
        *(store.set_scaling(alias_id, Scaling(replicas=Range(1, n)), wider) for n in range(2, 8)),
        return_exceptions=True,
    )
    assert [one for one in said if one is True] == [True]
    assert all(isinstance(one, ChangedMeanwhile) for one in said if one is not True)
    now = (await fleet.topology()).scaling
    # Replicas that come change nothing about how it scales.
    place = await fleet.serve()
    assert not await store.set_scaling(alias_id, None, now), "it has a replica"
    assert await store.set_scaling(alias_id, SCALING, now)
    assert not await store.set_scaling(place.queue_id, SCALING, None), "a replica has none"


async def test_of_two_who_change_a_policy_at_once_the_second_is_told(fleet: Fleet) -> None:
    store, alias_id = fleet.store, fleet.alias_id
    place = await fleet.serve()
    as_made = QueuePolicy(deliveries_max=7)
    # In all its parts, as people set it.
    steered = QueuePolicy(
        deliveries_max=7, lease_s=12.5, overflow=Overflow.DROP, prefetch=PrefetchGoal(manual=5)
    )
    assert await store.set_policy(alias_id, steered, as_made)
    with pytest.raises(ChangedMeanwhile, match="somebody else"):
        await store.set_policy(alias_id, QueuePolicy(paused=True), as_made)
    said = await asyncio.gather(
        *(store.set_policy(alias_id, QueuePolicy(deliveries_max=n), steered) for n in range(1, 7)),
        return_exceptions=True,
    )
    assert [one for one in said if one is True] == [True]
    assert all(isinstance(one, ChangedMeanwhile) for one in said if one is not True)
    found = [await store.find_queue(one, None) for one in (alias_id, place.queue_id)]
    policies = [one.policy for one in found if one is not None]
    assert policies[0] == policies[1], "replicas have the policy of their alias"
    assert not await store.set_policy(999_999, steered, as_made), "there is no such queue"


async def test_a_plain_queue_scales_for_whoever_saw_it_plain(store: Store) -> None:
    queue = await store.create_queue("orders", True)
    assert queue is not None
    assert await store.set_scaling(queue.queue_id, SCALING, None)
    with pytest.raises(ChangedMeanwhile):
        await store.set_scaling(queue.queue_id, Scaling(), None)
    assert await store.set_scaling(queue.queue_id, None, SCALING)
    with pytest.raises(ChangedMeanwhile):
        await store.set_scaling(queue.queue_id, SCALING, SCALING)


async def test_an_alias_becomes_elastic_and_plain_again(fleet: Fleet) -> None:
    store = fleet.store
    info = await store.find_queue(None, "orders")
    assert info is not None
    assert (info.elastic, info.alias_id, info.number) == (True, 0, 0)
    topology = await fleet.topology()
    assert (topology.queue, topology.scaling, topology.replicas) == ("orders", SCALING, [])

    place = await fleet.serve()
    assert not await store.set_scaling(fleet.alias_id, None), "it has a replica"
    assert not await store.set_scaling(place.queue_id, SCALING), "a replica has none"
    assert not await store.set_scaling(999, SCALING)
    await store.set_replica_state(
        fleet.alias_id, place.number, ReplicaState.DRAINING, fleet.leader_epoch
    )
    assert await store.retire_replica(fleet.alias_id, place.number, fleet.leader_epoch)

    assert await store.set_scaling(fleet.alias_id, None)
    info = await store.find_queue(None, "orders")
    assert info is not None
    assert not info.elastic
    assert await store.topology(fleet.alias_id) is None
    assert await store.add_replica(fleet.alias_id, fleet.leader_epoch) is None


async def test_a_replica_is_a_queue_that_is_not_listed(fleet: Fleet) -> None:
    store = fleet.store
    place = await fleet.serve()
    second = await fleet.serve()
    assert (place.number, second.number, place.state) == (1, 2, ReplicaState.STARTING)

    replica = await store.find_queue(place.queue_id, None)
    assert replica is not None
    assert (replica.name, replica.alias_id, replica.number) == ("orders#1", fleet.alias_id, 1)
    assert (replica.durable, replica.policy.deliveries_max) == (True, 7)
    location = await store.locate(place.queue_id)
    assert location is not None
    assert (location.queue, location.owner, location.alive) == (replica, fleet.member_id, True)
    assert [queue.name for queue in await store.list_queues()] == ["orders"]
    assert await store.active_queues(1) == []
    assert await fleet.put(second.queue_id, 1)
    assert [queue.name for queue in await store.active_queues(1)] == ["orders"]

    assert await store.set_policy(fleet.alias_id, QueuePolicy(deliveries_max=9))
    replica = await store.find_queue(second.queue_id, None)
    assert replica is not None
    assert replica.policy.deliveries_max == 9


async def test_deleting_an_alias_deletes_its_replicas(fleet: Fleet) -> None:
    store = fleet.store
    place = await fleet.serve()
    await fleet.put(place.queue_id, 1)
    before = await store.topology_version()

    assert await store.delete_queue(fleet.alias_id)

    assert await store.find_queue(place.queue_id, None) is None
    assert await fleet.stored(place.queue_id) == []
    assert await store.topologies() == []
    assert await store.topology_version() != before
    again = await store.create_queue("orders", True)
    assert again is not None
    assert not again.elastic


async def test_numbers_are_never_given_twice_nor_names(fleet: Fleet) -> None:
    store = fleet.store
    assert await store.create_queue("orders#2", True) is not None
    first = await fleet.serve()
    await store.set_replica_state(fleet.alias_id, 1, ReplicaState.DRAINING, fleet.leader_epoch)
    assert await store.retire_replica(fleet.alias_id, 1, fleet.leader_epoch)

    second = await fleet.serve()

    assert (first.number, second.number) == (1, 3), "there was a queue of the name orders#2"
    assert second.queue_id != first.queue_id


async def test_every_change_is_another_version(fleet: Fleet, backing: Backing) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    seen = [await store.topology_version()]
    versions = [(await fleet.topology()).version]

    async def changed() -> None:
        seen.append(await store.topology_version())
        versions.append((await fleet.topology()).version)

    place = await fleet.add()
    await changed()
    await fleet.claim(place.queue_id)
    await changed()
    await fleet.claim(fleet.alias_id)
    await changed()
    await store.assign_replica(fleet.alias_id, 1, 5, epoch)
    await changed()
    await store.set_replica_state(fleet.alias_id, 1, ReplicaState.SERVING, epoch)
    await changed()
    await store.set_shares(fleet.alias_id, {1: 1.0}, epoch)
    await changed()
    await store.set_homes(fleet.alias_id, [1] * ASSIGNMENT_SLOTS, epoch)
    await changed()
    (served,) = (await fleet.topology()).replicas
    assert served.address == "tidegate://there:1"
    await backing.declare_dead(fleet.member_id)
    await changed()
    (served,) = (await fleet.topology()).replicas
    assert served.address is None, "its owner is dead"
    assert await store.renew(fleet.member_id, 60.0)
    await changed()
    await store.release(place.queue_id, fleet.epochs[place.queue_id], None)
    await changed()
    await fleet.claim(place.queue_id)
    await changed()
    await store.leave(fleet.member_id)
    await changed()

    assert sorted(set(seen)) == seen
    assert sorted(set(versions)) == versions
    assert await store.topology_version() == seen[-1]


async def test_shares_and_homes_name_replicas_that_are_there(fleet: Fleet) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    for _ in range(3):
        await fleet.serve()

    assert await store.set_shares(fleet.alias_id, {1: 1.0, 2: 3.0}, epoch)
    assert [place.share for place in (await fleet.topology()).replicas] == [0.25, 0.75, 0.0]
    assert not await store.set_shares(fleet.alias_id, {1: 0.5, 9: 0.5}, epoch)
    for wrong in (-0.5, float("nan"), float("inf")):
        with pytest.raises(InvalidValue):
            await store.set_shares(fleet.alias_id, {1: wrong}, epoch)
    assert [place.share for place in (await fleet.topology()).replicas] == [0.25, 0.75, 0.0]

    homes = [1, 2] * (ASSIGNMENT_SLOTS // 2)
    assert await store.set_homes(fleet.alias_id, homes, epoch)
    assert not await store.set_homes(fleet.alias_id, [9] * ASSIGNMENT_SLOTS, epoch)
    with pytest.raises(InvalidValue):
        await store.set_homes(fleet.alias_id, [1, 2], epoch)
    assert (await fleet.topology()).homes == homes


async def test_a_replica_ends_when_nothing_is_stored_in_it(fleet: Fleet) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    for _ in range(3):
        await fleet.serve()
    one = (await fleet.topology()).replicas[0]
    await fleet.put(one.queue_id, 10, batch=4, dedup_ids=["once"])
    await store.set_shares(fleet.alias_id, {1: 0.5, 2: 0.25, 3: 0.25}, epoch)
    await store.set_homes(fleet.alias_id, [1, 2] * (ASSIGNMENT_SLOTS // 2), epoch)
    assert not await store.retire_replica(fleet.alias_id, 1, epoch), "it is not draining"
    await store.set_replica_state(fleet.alias_id, 1, ReplicaState.DRAINING, epoch)
    assert not await store.retire_replica(fleet.alias_id, 1, epoch), "it is not empty"

    # Done as a transaction does it, which cannot know that it was the last.
    settlement = Settlement(one.queue_id, fleet.epochs[one.queue_id])
    settlement.partly = {10: [(0, 3)]}
    await store.settle([settlement])
    assert await store.retire_replica(fleet.alias_id, 1, epoch)

    assert await store.find_queue(one.queue_id, None) is None
    assert not await fleet.put(one.queue_id, 20, batch=5), "nobody owns it"
    topology = await fleet.topology()
    assert [(place.number, place.share) for place in topology.replicas] == [(2, 0.5), (3, 0.5)]
    assert set(topology.homes) == {2, 3}
    assert topology.homes[1::2] == [2] * (ASSIGNMENT_SLOTS // 2), "the others stay where they were"
    assert await store.retire_replica(fleet.alias_id, 1, epoch), "again, after a lost answer"
    # Who got no answer finds out what became of its batch, and of its dedup id.
    assert await store.marks(one.queue_id) == {77: [(4, 5)]}
    assert list(await store.dedup_ids(fleet.alias_id, 2.0**30)) == ["once"]
    await store.forget_marks(-1.0)
    assert await store.marks(one.queue_id) == {}


async def test_dedup_ids_are_the_logical_queues(fleet: Fleet) -> None:
    one, two = await fleet.serve(), await fleet.serve()
    await fleet.put(one.queue_id, 1, dedup_ids=["a"])
    await fleet.put(two.queue_id, 1, dedup_ids=["b", "a"])
    for queue_id in (fleet.alias_id, one.queue_id, two.queue_id):
        assert set(await fleet.store.dedup_ids(queue_id, 2.0**30)) == {"a", "b"}


async def test_dedup_ids_are_kept_for_their_window_after_the_last_replica(fleet: Fleet) -> None:
    store = fleet.store
    assert await store.set_policy(fleet.alias_id, QueuePolicy(dedup_window_s=3600.0))
    # Of several stores, one in each of two.
    for place in [await fleet.serve(), await fleet.serve()]:
        for first_id, age_s in ((1, 3700.0), (2, 400.0)):
            dedup_ids = [f"{place.number} of {age_s:.0f} s"]
            arrived_at = time.time() - age_s
            await fleet.put(
                place.queue_id, first_id, 1, first_id, arrived_at=arrived_at, dedup_ids=dedup_ids
            )
        settlement = Settlement(place.queue_id, fleet.epochs[place.queue_id])
        settlement.finished = [1, 2]
        await store.settle([settlement])
        await store.set_replica_state(
            fleet.alias_id, place.number, ReplicaState.DRAINING, fleet.leader_epoch
        )
    for number in (1, 2):
        assert await store.retire_replica(fleet.alias_id, number, fleet.leader_epoch)

    assert await store.forget_dedup() == 2

    ages_s = await store.dedup_ids(fleet.alias_id, 3600.0)
    assert {dedup_id: round(age_s, -2) for dedup_id, age_s in ages_s.items()} == {
        "1 of 400 s": 400.0,
        "2 of 400 s": 400.0,
    }
    assert await store.forget_dedup() == 0


async def test_ids_that_replicas_remembered_are_known_when_it_is_a_plain_queue(
    fleet: Fleet,
) -> None:
    store = fleet.store
    for place in [await fleet.serve(), await fleet.serve()]:
        # The second stored it again, after the window of the first.
        arrived_at = time.time() - (50.0 if place.number == 1 else 10.0)
        ids = ["both", f"at {place.number}"]
        await fleet.put(place.queue_id, 1, 1, arrived_at=arrived_at, dedup_ids=ids)
        settlement = Settlement(place.queue_id, fleet.epochs[place.queue_id])
        settlement.finished = [1]
        await store.settle([settlement])
        await store.set_replica_state(
            fleet.alias_id, place.number, ReplicaState.DRAINING, fleet.leader_epoch
        )
    assert (await store.dedup_ids(fleet.alias_id, 300.0))["both"] < 40.0
    for number in (1, 2):
        assert await store.retire_replica(fleet.alias_id, number, fleet.leader_epoch)
    assert await store.set_scaling(fleet.alias_id, None)

    ages_s = await store.dedup_ids(fleet.alias_id, 300.0)

    assert ages_s.keys() == {"at 1", "at 2", "both"}
    assert ages_s["both"] < 40.0 < ages_s["at 1"]


async def test_of_dead_letters_that_were_copied_the_first_are_not_taken_for_the_oldest(
    fleet: Fleet,
) -> None:
    place = await fleet.serve()
    queue_id, epoch = place.queue_id, fleet.epochs[place.queue_id]

    async def stored_and_gone(first_id: int, producer: int, batches: list[int]) -> None:
        segment = Segment(
            queue_id=queue_id,
            first_id=first_id,
            priority=5,
            arrived_at=1.0,
            lengths=[1],
            payload=b"x",
            senders=[1],
        )
        write = Write(segment, epoch, [producer] * len(batches), batches)
        assert await fleet.store.transact([write], [])
        settlement = Settlement(queue_id, epoch)
        settlement.finished = [first_id]
        assert await fleet.store.settle([settlement]) == [True]

    await stored_and_gone(1, 77, list(range(10, 5010, 2)))
    await stored_and_gone(2, -7, list(range(10, 5010, 2)))
    await stored_and_gone(3, -8, list(range(10, 10_010, 2)))
    assert await fleet.store.forget_marks(1000.0) == 0

    marks = await fleet.store.marks(queue_id)
    assert marks[77][0] > (10, 11), "a producer counts up: what is old is settled"
    assert marks[-7] == [(batch, batch + 1) for batch in range(10, 5010, 2)]
    # Bounded all the same.
    assert marks[-8] == [(batch, batch + 1) for batch in range(10, 10_010, 2)][-4096:]


async def test_whole_segments_move_with_what_is_done_and_what_has_failed(fleet: Fleet) -> None:
    store = fleet.store
    one, two = await fleet.serve(), await fleet.serve()
    for first_id in (10, 20, 30):
        await fleet.put(one.queue_id, first_id, batch=first_id)
    settlement = Settlement(one.queue_id, fleet.epochs[one.queue_id])
    settlement.partly = {10: [(0, 1)]}
    settlement.attempts = {(20, 1): FailedDelivery(2, None, [])}
    await store.settle([settlement])

    move = fleet.move("m1", one.queue_id, two.queue_id, [10, 20], [100, 103])
    assert await store.move(move)

    assert [segment.first_id for segment in await fleet.stored(one.queue_id)] == [30]
    first, second = await fleet.stored(two.queue_id)
    assert (first.first_id, first.open_ranges()) == (100, [(1, 3)])
    assert (second.first_id, bytes(second.payload), second.failed) == (103, b"000102", {1: 2})
    # A resend comes to where the batch was put, and the target has none of that number.
    assert await store.marks(one.queue_id) == {77: [(10, 11), (20, 21), (30, 31)]}
    assert await store.marks(two.queue_id) == {}
    assert await store.move(move), "again, after a lost answer: nothing happens"
    assert len(await fleet.stored(two.queue_id)) == 2
    # What is gone meanwhile is left out.
    assert await store.move(fleet.move("m2", one.queue_id, two.queue_id, [10, 30], [200, 203]))
    assert [each.first_id for each in await fleet.stored(two.queue_id)] == [100, 103, 203]


async def test_a_move_is_fenced_by_both_epochs(fleet: Fleet) -> None:
    store = fleet.store
    one, two = await fleet.serve(), await fleet.serve()
    await fleet.put(one.queue_id, 10)
    good = fleet.move("m", one.queue_id, two.queue_id, [10], [100])

    assert not await store.move(good._replace(source_epoch=good.source_epoch + 1))
    assert not await store.move(good._replace(move_id="n", target_epoch=good.target_epoch - 1))
    assert not await store.move(good._replace(move_id="o", target=999))
    assert [segment.first_id for segment in await fleet.stored(one.queue_id)] == [10]
    assert await store.marks(one.queue_id) == {77: [(1, 2)]}
    assert await store.move(good)
    assert await store.finish_moves(one.queue_id, good.source_epoch) == 0


async def test_replica_of_a_live_machine_is_not_claimed_by_others(
    fleet: Fleet, backing: Backing
) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    machine = await store.add_machine("process", 2, None, epoch)
    place = await fleet.add(machine_id=machine.machine_id)
    assert place.queue_id in await store.orphans(), "while it boots, anybody may"
    member = await store.join("machine", "tidegate://here:2", 60.0)
    assert await store.machine_joined(machine.machine_id, member)

    assert place.queue_id not in await store.orphans()
    assert place.queue_id not in await store.orphans(fleet.member_id)
    assert place.queue_id in await store.orphans(member)
    assert await store.claim(place.queue_id, fleet.member_id) is None
    assert await store.claim(place.queue_id, member) is not None
    (mine,) = await store.assigned(machine.machine_id)
    assert (mine.queue_id, mine.address) == (place.queue_id, "tidegate://here:2")

    await backing.declare_dead(member)
    assert place.queue_id in await store.orphans()
    assert await store.claim(place.queue_id, fleet.member_id) is not None
    assert await store.remove_machine(machine.machine_id, epoch)
    assert await store.assigned(machine.machine_id) == []
    assert (await fleet.topology()).replicas[0].machine_id is None


async def test_leader_stays_until_it_dies_then_the_oldest_node_leads(
    fleet: Fleet, backing: Backing
) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    second = await store.join("second", "tidegate://here:2", 60.0)
    third = await store.join("third", "tidegate://here:3", 60.0)
    assert await store.lead(second) is None
    assert await store.lead(fleet.member_id) == epoch, "nothing has changed"
    assert await store.leader() == (fleet.member_id, epoch)

    await backing.declare_dead(fleet.member_id)

    assert await store.lead(third) is None, "an older one lives"
    deposing = await store.lead(second)
    assert deposing is not None
    assert deposing > epoch
    assert await store.lead(fleet.member_id) is None
    # The one that stalled is there again, and the smallest: nobody gives up the lead for it.
    assert await store.renew(fleet.member_id, 60.0)
    assert await store.lead(fleet.member_id) is None
    assert await store.lead(second) == deposing
    assert await store.leader() == (second, deposing)

    # One that leaves is followed at once, by the smallest that lives then.
    await store.leave(second)
    assert await store.lead(third) is None
    back = await store.lead(fleet.member_id)
    assert back is not None
    assert back > deposing


async def test_a_leader_that_stalls_while_nobody_follows_leads_on(
    fleet: Fleet, backing: Backing
) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    await backing.declare_dead(fleet.member_id)
    assert await store.lead(fleet.member_id) is None, "who is not alive leads nothing"
    assert await store.renew(fleet.member_id, 60.0)
    assert await store.lead(fleet.member_id) == epoch


async def test_a_deposed_leaders_orders_are_refused(fleet: Fleet, backing: Backing) -> None:
    store, stale, alias = fleet.store, fleet.leader_epoch, fleet.alias_id
    await fleet.serve()
    machine = await store.add_machine("process", 2, "host-1", stale)
    second = await store.join("second", "tidegate://here:2", 60.0)
    await backing.declare_dead(fleet.member_id)
    assert await store.lead(second) is not None
    before = await fleet.topology()

    for order in (
        store.add_replica(alias, stale),
        store.assign_replica(alias, 1, 1, stale),
        store.set_replica_state(alias, 1, ReplicaState.DRAINING, stale),
        store.set_shares(alias, {1: 1.0}, stale),
        store.set_homes(alias, [1] * ASSIGNMENT_SLOTS, stale),
        store.retire_replica(alias, 1, stale),
        store.add_machine("process", 1, None, stale),
        store.set_machine_state(machine.machine_id, MachineState.FAILED, stale),
        store.remove_machine(machine.machine_id, stale),
        store.note_decision("orders", b"{}", stale),
    ):
        with pytest.raises(StaleEpoch):
            await order

    after = await fleet.topology()
    assert (after.replicas, after.homes) == (before.replicas, before.homes)
    assert await store.decisions("orders", 10) == []
    (known,) = await store.machines()
    assert known.state is MachineState.BOOTING


async def test_a_machine_is_ordered_joins_and_goes(fleet: Fleet) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    machine = await store.add_machine("process", 2, "host-1", epoch)
    assert (machine.state, machine.host, machine.alive) == (MachineState.BOOTING, "host-1", False)
    member = await store.join("machine", "tidegate://here:2", 60.0)
    assert await store.machine_joined(machine.machine_id, member)
    (known,) = await store.machines()
    assert (known.state, known.member_id, known.alive) == (MachineState.UP, member, True)
    assert known.address == "tidegate://here:2"
    assert known.joined_at is not None
    assert known.joined_at >= known.ordered_at

    assert await store.set_machine_state(machine.machine_id, MachineState.WARM, epoch)
    assert await store.machine_joined(machine.machine_id, member)
    assert (await store.machines())[0].state is MachineState.WARM
    assert await store.set_machine_state(machine.machine_id, MachineState.HALTING, epoch, "idle")
    assert not await store.machine_joined(machine.machine_id, member), "nobody wants it"
    assert (await store.machines())[0].detail == "idle"
    assert await store.remove_machine(machine.machine_id, epoch)
    assert not await store.machine_joined(machine.machine_id, member)
    assert not await store.remove_machine(machine.machine_id, epoch)
    assert not await store.set_machine_state(machine.machine_id, MachineState.UP, epoch)
    another = await store.add_machine("process", 2, None, epoch)
    assert another.machine_id > machine.machine_id, "ids are never given twice"


async def test_the_newest_decisions_are_kept(fleet: Fleet) -> None:
    store, epoch = fleet.store, fleet.leader_epoch
    await store.note_decision("others", b"else", epoch)
    for number in range(505):
        await store.note_decision("orders", b"%d" % number, epoch)
    kept = await store.decisions("orders", 1000)
    assert (len(kept), kept[0], kept[-1]) == (500, b"504", b"5")
    assert await store.decisions("orders", 2) == [b"504", b"503"]
    assert await store.decisions("others", 2) == [b"else"]
