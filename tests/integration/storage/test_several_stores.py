"""Several stores as one: where replicas are, what moves between, what a store takes with it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from backing import PostgresBacking, SeveralBacking, TurnedClock
from full_disk import without_room
from places import SUPPORT
from test_replicas import SCALING, Fleet
from waiting import eventually_async

from tidegate.core.errors import InvalidValue, IoFailure, LimitReached, StaleEpoch, Unavailable
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import CRASH_VARIABLE, STORE_POINTS
from tidegate.core.segment import Segment
from tidegate.core.store import Settlement, Write
from tidegate.core.topology import STORE_SHIFT, ReplicaInfo, ReplicaState
from tidegate.storage import sharded
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres.store import PostgresStore
from tidegate.storage.sharded import ShardedStore
from tidegate.storage.sharded_moves import _copy


@pytest.fixture
def backing(embedded_url: str) -> Iterator[SeveralBacking]:
    contents = SeveralBacking("several", embedded_url)
    yield contents
    contents.give_back()


@pytest.fixture
async def store(backing: SeveralBacking) -> AsyncIterator[ShardedStore]:
    store = backing.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def fleet(store: ShardedStore) -> Fleet:
    return await fleet_on(store)


async def fleet_on(store: ShardedStore) -> Fleet:
    alias = await store.create_queue("orders", True)
    assert alias is not None
    member_id = await store.join("owner", "tidegate://there:1", 60.0)
    epoch = await store.lead(member_id)
    assert epoch is not None
    assert await store.set_scaling(alias.queue_id, SCALING)
    return Fleet(store, member_id, epoch, alias)


class Stopped(Exception):
    """Where a process would have ended."""


def stop_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def reached(name: str) -> None:
        if name == point:
            raise Stopped(name)

    monkeypatch.setattr(sharded, "crash_point", reached)


# Which stores there are


async def test_stores_are_listed_in_the_same_order_everywhere(
    backing: SeveralBacking, store: ShardedStore
) -> None:
    first, second, third = backing.urls
    for urls, why in (
        ([first, third, second], "same order"),
        ([second, first, third], "listed first"),
        ([first, second], "first of 3 stores"),
        ([first, second, third, second], "same order"),
        ([first, second, third, first], "listed twice"),
    ):
        another = ShardedStore(urls)
        with pytest.raises(InvalidValue, match=why):
            await another.open()
        await another.close()
    for url, why in ((first, "list all of them"), (second, "listed first")):
        alone = PostgresStore(url)
        with pytest.raises(InvalidValue, match=why):
            await alone.open()
        await alone.close()


async def test_a_store_is_added_at_the_end_and_must_be_empty(
    backing: SeveralBacking, store: ShardedStore, embedded_url: str
) -> None:
    used = PostgresBacking("used", embedded_url)
    alone = PostgresStore(used.url)
    await alone.open()
    await alone.create_queue("mine", True)
    await alone.close()
    longer = ShardedStore([*backing.urls, used.url])
    with pytest.raises(InvalidValue, match="list an empty one"):
        await longer.open()
    await longer.close()

    longer = ShardedStore([*backing.urls, PostgresBacking("new", embedded_url).url])
    await longer.open()
    await longer.close()


async def test_replicas_spread_over_the_stores(fleet: Fleet) -> None:
    places = [await fleet.serve() for _ in range(6)]
    assert [place.store_number for place in places] == [0, 1, 2, 0, 1, 2]
    assert (await fleet.serve(store_number=2)).queue_id >> STORE_SHIFT == 2
    with pytest.raises(InvalidValue):
        await fleet.add(store_number=3)
    addresses = {place.address for place in (await fleet.topology()).replicas}
    assert addresses == {"tidegate://there:1"}
    found = await fleet.store.find_queue(None, "orders#2")
    assert found is not None
    assert found.queue_id == places[1].queue_id
    (member,) = await fleet.store.members()
    assert member.queues == 7


async def test_atomic_writes_need_one_store(fleet: Fleet) -> None:
    one, two = await fleet.serve(), await fleet.serve()
    writes = []
    for place in (one, two):
        segment = Segment(
            queue_id=place.queue_id,
            first_id=1,
            priority=5,
            arrived_at=1.0,
            lengths=[1],
            payload=b"x",
            senders=[1],
        )
        writes.append(Write(segment, fleet.epochs[place.queue_id], [], []))

    with pytest.raises(InvalidValue, match="different stores"):
        await fleet.store.transact(writes, [])

    assert await fleet.stored(one.queue_id) == await fleet.stored(two.queue_id) == []
    assert await fleet.store.transact(writes[1:], [])


async def test_settlements_of_several_stores_are_each_theirs(fleet: Fleet) -> None:
    places = [await fleet.serve() for _ in range(3)]
    settlements = []
    for place in places:
        await fleet.put(place.queue_id, 1)
        settlements.append(Settlement(place.queue_id, fleet.epochs[place.queue_id]))
        settlements[-1].finished = [1]
    settlements[1].epoch += 1

    assert await fleet.store.settle(settlements) == [True, False, True]

    assert [len(await fleet.stored(place.queue_id)) for place in places] == [0, 1, 0]


# A replica that is in one store and noted in another


async def test_claim_creates_a_replica_that_was_only_noted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, "after-replica-noted")
    with pytest.raises(Stopped):
        await fleet.add(store_number=1)
    (place,) = (await fleet.topology()).replicas
    assert (place.number, place.store_number, place.address) == (1, 1, None)

    assert place.queue_id in await fleet.store.orphans()
    location = await fleet.store.locate(place.queue_id)

    assert location is not None
    assert location.queue.name == "orders#1"
    await fleet.claim(place.queue_id)
    assert await fleet.put(place.queue_id, 1)
    assert await fleet.store.orphans() == [fleet.alias_id]


@pytest.mark.parametrize("point", ["after-end-noted", "after-replica-ended"])
async def test_the_end_of_a_replica_goes_on_where_it_was_stopped(
    fleet: Fleet, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, alias, epoch = fleet.store, fleet.alias_id, fleet.leader_epoch
    place = await fleet.serve(store_number=1)
    await store.set_replica_state(alias, 1, ReplicaState.DRAINING, epoch)
    with monkeypatch.context() as patched:
        stop_at(patched, point)
        with pytest.raises(Stopped):
            await store.retire_replica(alias, 1, epoch)

    # Nobody knows whether it is still there: nothing else may become of it.
    assert not await store.set_replica_state(alias, 1, ReplicaState.SERVING, epoch)
    assert await store.retire_replica(alias, 1, epoch)

    assert (await fleet.topology()).replicas == []
    assert await store.locate(place.queue_id) is None
    assert await store.retire_replica(alias, 1, epoch)


async def test_a_replica_that_is_not_empty_can_be_served_again(fleet: Fleet) -> None:
    store, alias, epoch = fleet.store, fleet.alias_id, fleet.leader_epoch
    place = await fleet.serve(store_number=1)
    await fleet.put(place.queue_id, 1)
    await store.set_replica_state(alias, 1, ReplicaState.DRAINING, epoch)

    assert not await store.retire_replica(alias, 1, epoch)

    assert await store.set_replica_state(alias, 1, ReplicaState.SERVING, epoch)
    assert len(await fleet.stored(place.queue_id)) == 1


# Moves


async def ids_everywhere(fleet: Fleet, places: list[ReplicaInfo]) -> Counter[bytes]:
    """How often each message is in any of the replicas, and not done."""
    found: Counter[bytes] = Counter()
    for place in places:
        for segment in await fleet.stored(place.queue_id):
            for low, high in segment.open_ranges():
                for offset in range(low, high):
                    found[bytes(segment.body(offset, offset + 1))] += 1
    return found


async def in_a_process(urls: list[str], *arguments: object, crash_at: str | None) -> int:
    """Its exit code."""
    variables = dict(os.environ)
    variables.pop(CRASH_VARIABLE, None)
    if crash_at is not None:
        variables[CRASH_VARIABLE] = crash_at
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SUPPORT / "moving_process.py"),
        " ".join(urls),
        *map(str, arguments),
        env=variables,
        stdout=subprocess.DEVNULL,
    )
    return await process.wait()


@pytest.mark.parametrize("point", STORE_POINTS)
async def test_a_mover_that_dies_between_two_steps_loses_and_doubles_nothing(
    fleet: Fleet, backing: SeveralBacking, point: str
) -> None:
    store = fleet.store
    one, two = await fleet.serve(store_number=1), await fleet.serve(store_number=2)
    await fleet.put(one.queue_id, 10, batch=1)
    await fleet.put(one.queue_id, 20, batch=2, count=2)
    settlement = Settlement(one.queue_id, fleet.epochs[one.queue_id])
    settlement.partly = {10: [(0, 1)]}
    await store.settle([settlement])
    before = await ids_everywhere(fleet, [one, two])
    move = fleet.move("m", one.queue_id, two.queue_id, [10, 20], [100, 103])

    # The last point is in finishing: another one has to leave something to finish first.
    dies_at = "after-departure" if point == "after-asking" else point
    died = await in_a_process(backing.urls, json.dumps(move), crash_at=dies_at)
    assert died == -signal.SIGKILL
    # Another owner of the source finds it, and may die over it too.
    epoch = await fleet.claim(one.queue_id)
    if point == "after-asking":
        arguments = ("finish", one.queue_id, epoch)
        assert await in_a_process(backing.urls, *arguments, crash_at=point) == -signal.SIGKILL
    await store.finish_moves(one.queue_id, epoch)

    assert await ids_everywhere(fleet, [one, two]) == before
    assert await store.marks(one.queue_id) == {77: [(1, 3)]}
    assert await store.marks(two.queue_id) == {}
    arrived = len(await fleet.stored(two.queue_id)) == 2
    assert arrived == (point in ("after-arrival", "after-leaving"))
    # Its mover wakes up, and is too late.
    assert await store.move(move) is False
    assert await ids_everywhere(fleet, [one, two]) == before
    assert await store.finish_moves(one.queue_id, epoch) == 0


async def test_a_copy_that_comes_after_its_move_was_cancelled_is_refused(fleet: Fleet) -> None:
    store = fleet.store
    assert isinstance(store, ShardedStore)
    one, two = await fleet.serve(store_number=1), await fleet.serve(store_number=2)
    await fleet.put(one.queue_id, 10)
    move = fleet.move("m", one.queue_id, two.queue_id, [10], [100])
    source, target = (
        await store.others.holder(one.queue_id),
        await store.others.holder(two.queue_id),
    )
    query = "select depart(%s, %s::int, %s, %s::int, %s::bigint[], %s::bigint[])"
    await source.ask(query, "m", move.source, move.source_epoch, move.target, [10], [100])
    assert await fleet.stored(one.queue_id) == [], "it is on its way"
    await store.set_replica_state(
        fleet.alias_id, one.number, ReplicaState.DRAINING, fleet.leader_epoch
    )
    assert not await store.retire_replica(fleet.alias_id, one.number, fleet.leader_epoch)

    assert await store.finish_moves(one.queue_id, move.source_epoch) == 1

    assert not await _copy(source, target, move)
    assert len(await fleet.stored(one.queue_id)) == 1
    assert await fleet.stored(two.queue_id) == []


async def test_a_move_is_asked_again_after_an_unknown_outcome(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fleet.store
    one, two = await fleet.serve(store_number=1), await fleet.serve(store_number=2)
    await fleet.put(one.queue_id, 10)
    move = fleet.move("m", one.queue_id, two.queue_id, [10], [100])

    def lost(name: str) -> None:
        if name == "after-arrival":
            raise Unavailable("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.storage.sharded_moves.crash_point", lost)
        with pytest.raises(Unavailable):
            await store.move(move)
    assert await store.move(move)
    assert len(await fleet.stored(two.queue_id)) == 1
    assert await fleet.stored(one.queue_id) == []
    assert await store.marks(one.queue_id) == {77: [(1, 2)]}


async def test_a_move_that_its_source_has_no_room_for_at_a_second_try_is_undone(
    fleet: Fleet, backing: SeveralBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fleet.store
    one, two = await fleet.serve(store_number=1), await fleet.serve(store_number=2)
    await fleet.put(one.queue_id, 10)
    move = fleet.move("m", one.queue_id, two.queue_id, [10], [100])

    def lost(name: str) -> None:
        if name == "after-departure":
            raise Unavailable("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.storage.sharded_moves.crash_point", lost)
        with pytest.raises(Unavailable):
            await store.move(move)
    assert await fleet.stored(one.queue_id) == [], "it is on its way"

    with (
        without_room(backing.urls[1], "insert on departure"),
        pytest.raises(LimitReached, match="short of room"),
    ):
        await store.move(move)

    assert [each.first_id for each in await fleet.stored(one.queue_id)] == [10]
    assert await fleet.stored(two.queue_id) == []
    assert await store.finish_moves(one.queue_id, move.source_epoch) == 0


async def test_a_move_that_nobody_can_tell_about_is_finished_when_there_is_room(
    fleet: Fleet, backing: SeveralBacking
) -> None:
    store = fleet.store
    one, two = await fleet.serve(store_number=1), await fleet.serve(store_number=2)
    await fleet.put(one.queue_id, 10)
    move = fleet.move("m", one.queue_id, two.queue_id, [10], [100])
    with without_room(backing.urls[1], "delete on departure"):
        with pytest.raises(IoFailure, match="not finished"):
            await store.move(move)
        with pytest.raises(Unavailable, match="not finished"):
            await store.finish_moves(one.queue_id, move.source_epoch)
    assert await store.finish_moves(one.queue_id, move.source_epoch) == 1
    assert await fleet.stored(one.queue_id) == []
    assert [each.first_id for each in await fleet.stored(two.queue_id)] == [100]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_put_moved_stopped_and_taken_over_is_there_once(
    fleet: Fleet, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    places = [await fleet.serve() for _ in range(4)]
    next_id = dict.fromkeys([place.queue_id for place in places], 1)
    expected: Counter[bytes] = Counter()
    batches: dict[int, int] = Counter()
    put = 0

    def maybe_stop(name: str) -> None:
        if chance.random() < 0.15:
            raise Stopped(name)

    monkeypatch.setattr("tidegate.storage.sharded_moves.crash_point", maybe_stop)
    for turn in range(40):
        source, target = (place.queue_id for place in chance.sample(places, 2))
        waiting = await fleet.stored(source)
        what = chance.random()
        if what < 0.4 or not waiting:
            payloads = [b"%06d" % (put + each) for each in range(chance.randint(1, 4))]
            put += len(payloads)
            batches[source] += 1
            segment = Segment(
                queue_id=source,
                first_id=next_id[source],
                priority=5,
                arrived_at=1_700_000_000.0,
                lengths=[6] * len(payloads),
                payload=b"".join(payloads),
                senders=[1],
            )
            next_id[source] += len(payloads)
            write = Write(segment, fleet.epochs[source], [77], [batches[source]])
            assert await fleet.store.transact([write], [])
            expected.update(payloads)
        elif what < 0.5:
            segment = chance.choice(waiting)
            low = segment.open_ranges()[0][0]
            settlement = Settlement(source, fleet.epochs[source])
            settlement.partly = {segment.first_id: [(low, low + 1)]}
            del expected[bytes(segment.body(low, low + 1))]
            assert await fleet.store.settle([settlement]) == [True]
            assert await fleet.store.drop_done(source, fleet.epochs[source])
        else:
            chosen = chance.sample(waiting, chance.randint(1, len(waiting)))
            new = []
            for segment in chosen:
                new.append(next_id[target])
                next_id[target] += segment.count
            first_ids = [segment.first_id for segment in chosen]
            move = fleet.move(f"m{turn}", source, target, first_ids, new)
            try:
                assert await fleet.store.move(move)
            except Stopped:
                await fleet.claim(source)
                await finished(fleet, source)
        assert await ids_everywhere(fleet, places) == expected
    for place in places:
        marks = await fleet.store.marks(place.queue_id)
        number = batches[place.queue_id]
        assert marks == ({77: [(1, number + 1)]} if number else {})


async def finished(fleet: Fleet, queue_id: int) -> None:
    """Until it was not stopped."""
    while True:
        try:
            await fleet.store.finish_moves(queue_id, fleet.epochs[queue_id])
            return
        except Stopped:
            await fleet.claim(queue_id)


# Who leads


async def test_new_leader_waits_for_the_actions_of_the_old_one(
    fleet: Fleet, backing: SeveralBacking
) -> None:
    second = await fleet.store.join("second", "tidegate://here:2", 60.0)
    await backing.declare_dead(fleet.member_id)
    async with await psycopg.AsyncConnection.connect(backing.urls[0]) as ordering:
        await ordering.execute("select fence_leader(%s)", (fleet.leader_epoch,))
        leading = asyncio.create_task(fleet.store.lead(second))
        async with await psycopg.AsyncConnection.connect(
            backing.urls[0], autocommit=True
        ) as watching:
            while True:
                rows = await watching.execute(
                    "select 1 from pg_stat_activity where wait_event_type = 'Lock' "
                    "and query like '%lead_cluster%' and pid <> pg_backend_pid()"
                )
                if await rows.fetchone():
                    break
        assert not leading.done()
        await ordering.commit()
    assert await leading == fleet.leader_epoch + 1


async def test_of_two_who_think_they_lead_one_is_obeyed(
    fleet: Fleet, backing: SeveralBacking
) -> None:
    rival = backing.store()
    await rival.open()
    second = await rival.join("second", "tidegate://here:2", 60.0)
    epochs = {fleet.member_id: fleet.leader_epoch, second: -1}
    stores = {fleet.member_id: fleet.store, second: rival}

    async def order(member_id: int) -> bool:
        try:
            await stores[member_id].add_replica(fleet.alias_id, epochs[member_id])
        except StaleEpoch:
            return False
        return True

    made = 0
    for alive in (fleet.member_id, second, fleet.member_id, second, fleet.member_id):
        await stores[alive].renew(alive, 60.0)
        for other in epochs:
            if other != alive:
                await backing.declare_dead(other)
        epoch = await stores[alive].lead(alive)
        assert epoch is not None
        epochs[alive] = epoch
        obeyed = dict(zip(epochs, await asyncio.gather(*map(order, epochs)), strict=True))
        assert obeyed == {member_id: member_id == alive for member_id in epochs}
        made += 1
    assert len((await fleet.topology()).replicas) == made
    await rival.close()


# A store that is away


async def test_a_store_that_is_away_takes_only_its_replicas_with_it(
    embedded_url: str, other_server: EmbeddedPostgres
) -> None:
    clock = TurnedClock()
    urls = [PostgresBacking("first", embedded_url).url, other_server.url]
    store = ShardedStore(urls, monotonic=clock.monotonic)
    await store.open()
    fleet = await fleet_on(store)
    here, there = await fleet.serve(), await fleet.serve()
    assert there.store_number == 1
    await fleet.put(there.queue_id, 10)
    standing = store.membership_epoch(there.queue_id)
    assert standing is not None
    version = await store.topology_version()

    other_server.stop()
    assert await store.renew(fleet.member_id, 60.0), "the catalogue is there"
    clock.turn(60.0)
    assert store.membership_epoch(there.queue_id) is None

    assert store.membership_epoch(here.queue_id) is not None
    assert await fleet.put(here.queue_id, 10)
    with pytest.raises(Unavailable):
        await fleet.put(there.queue_id, 20)
    topology = await fleet.topology()
    assert [place.address is None for place in topology.replicas] == [False, True]
    assert await store.topology_version() != version
    assert there.queue_id not in await store.orphans()
    assert (await fleet.add()).store_number == 0, "new ones come to where they can be served"
    move = fleet.move("m", here.queue_id, there.queue_id, [10], [100])
    with pytest.raises(Unavailable):
        await store.move(move)
    with pytest.raises(Unavailable):
        await store.finish_moves(here.queue_id, fleet.epochs[here.queue_id])
    assert await fleet.stored(here.queue_id) == [], "nobody knows where it is"
    assert await store.set_policy(fleet.alias_id, QueuePolicy(deliveries_max=3))
    with pytest.raises(Unavailable):
        await store.delete_queue(fleet.alias_id)
    # A node that starts meanwhile can do without it.
    late = ShardedStore([store.url, other_server.url])
    await late.open()
    assert await late.locate(here.queue_id) is not None
    with pytest.raises(Unavailable):
        await late.locate(there.queue_id)

    other_server.start()
    await store.renew(fleet.member_id, 60.0)
    await eventually_async(lambda: store.membership_epoch(there.queue_id) == standing)
    assert await store.finish_moves(here.queue_id, fleet.epochs[here.queue_id]) == 1
    assert [each.first_id for each in await fleet.stored(here.queue_id)] == [10]
    assert [each.first_id for each in await fleet.stored(there.queue_id)] == [10]
    location = await late.locate(there.queue_id)
    assert location is not None
    assert (location.owner, location.queue.policy.deliveries_max) == (fleet.member_id, 3)
    await late.close()
    await store.close()


async def test_node_declared_dead_in_one_store_loses_its_queues_there(
    fleet: Fleet, backing: SeveralBacking
) -> None:
    store = fleet.store
    here, there = await fleet.serve(), await fleet.serve()
    standing = store.membership_epoch(there.queue_id)
    await backing.stores[there.store_number].declare_dead(fleet.member_id)
    rival = backing.store()
    await rival.open()
    second = await rival.join("second", "tidegate://here:2", 60.0)
    assert await rival.claim(there.queue_id, second) is not None
    assert await rival.claim(here.queue_id, second) is None

    assert await store.renew(fleet.member_id, 60.0)
    await eventually_async(lambda: store.membership_epoch(there.queue_id) != standing)

    assert store.membership_epoch(here.queue_id) == 0
    assert not await fleet.put(there.queue_id, 1)
    assert await fleet.put(here.queue_id, 1)
    await rival.close()
