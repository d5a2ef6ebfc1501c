"""The store itself, without a node: who may write, what is fenced, what is remembered."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from backing import SQL_STORES, Backing, PostgresBacking
from waiting import eventually_async

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.model import Attributes, ClientMode, QueueInfo
from tidegate.core.segment import Segment
from tidegate.core.store import (
    ClaimedQueue,
    FailedDelivery,
    Publication,
    PublicationTarget,
    Settlement,
    Store,
    Write,
)
from tidegate.storage.postgres.store import PostgresStore, migration_files


class Scene:
    """A queue, owned by one member in its first epoch."""

    def __init__(self, store: Store, queue: QueueInfo, owner: int, claim: ClaimedQueue) -> None:
        self.store = store
        self.queue = queue
        self.owner = owner
        self.epoch = claim.epoch

    def segment(self, first_id: int, count: int = 3, **columns: object) -> Segment:
        fields: dict[str, object] = {
            "queue_id": self.queue.queue_id,
            "first_id": first_id,
            "priority": 5,
            "arrived_at": 1_700_000_000.25,
            "lengths": [1] * count,
            "payload": b"x" * count,
            "senders": [1],
        }
        return Segment(**{**fields, **columns})  # type: ignore[arg-type]

    async def put(self, segment: Segment, epoch: int | None = None, batch: int = 1) -> bool:
        return (await self.put_all([(segment, epoch or self.epoch, batch)]))[0]

    async def put_all(self, writes: list[tuple[Segment, int, int]]) -> list[bool]:
        future: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

        def done(outcome: list[bool] | Exception) -> None:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.store.submit([Write(s, epoch, [77], [batch]) for s, epoch, batch in writes], done)
        return await future

    async def settle(
        self,
        finished: list[int],
        partly: dict[int, list[tuple[int, int]]] | None = None,
        epoch: int | None = None,
    ) -> bool:
        settlement = Settlement(self.queue.queue_id, epoch or self.epoch)
        settlement.finished = finished
        settlement.partly = partly or {}
        return (await self.store.settle([settlement]))[0]

    async def stored(self) -> list[Segment]:
        found = []
        for lane in await self.store.lanes(self.queue.queue_id):
            found += await self.store.read_lane(
                self.queue.queue_id, lane.priority, lane.addressed, 0, 2**62, 1000, 2**40
            )
        return sorted(found, key=lambda segment: segment.first_id)


@pytest.fixture
async def scene(store: Store) -> Scene:
    queue = await store.create_queue("orders", True)
    assert queue is not None
    owner = await store.join("owner", "tidegate://there:1", 60.0)
    claim = await store.claim(queue.queue_id, owner)
    assert claim is not None
    return Scene(store, queue, owner, claim)


async def depose(scene: Scene, backing: Backing) -> ClaimedQueue:
    """Another member takes the queue."""
    await backing.declare_dead(scene.owner)
    taker = await scene.store.join("taker", "tidegate://here:2", 60.0)
    claim = await scene.store.claim(scene.queue.queue_id, taker)
    assert claim is not None
    return claim


async def test_two_commits_under_way_are_answered_in_their_order(scene: Scene) -> None:
    answers: list[list[bool]] = []
    for first_id in (1, 4):
        write = Write(scene.segment(first_id), scene.epoch, [77], [first_id])
        scene.store.submit([write], answers.append)  # type: ignore[arg-type]
    stale = Write(scene.segment(7), scene.epoch + 1, [77], [7])
    scene.store.submit([stale], answers.append)  # type: ignore[arg-type]
    assert await scene.put(scene.segment(10), batch=10)
    assert answers == [[True], [True], [False]]
    assert [segment.first_id for segment in await scene.stored()] == [1, 4, 10]


async def test_epochs_only_grow(scene: Scene, backing: Backing) -> None:
    claim = await depose(scene, backing)
    assert claim.epoch > scene.epoch
    assert await scene.store.release(scene.queue.queue_id, claim.epoch, None)
    third = await scene.store.join("third", "tidegate://here:3", 60.0)
    again = await scene.store.claim(scene.queue.queue_id, third)
    assert again is not None
    assert again.epoch > claim.epoch


async def test_a_living_owner_keeps_its_queue(scene: Scene) -> None:
    other = await scene.store.join("other", "tidegate://here:2", 60.0)
    assert await scene.store.claim(scene.queue.queue_id, other) is None
    location = await scene.store.locate(scene.queue.queue_id)
    assert location is not None
    assert (location.owner, location.alive) == (scene.owner, True)
    assert await scene.store.orphans() == []


async def test_only_a_living_member_claims(scene: Scene, backing: Backing) -> None:
    dead = await scene.store.join("dead", "tidegate://here:2", 60.0)
    await backing.declare_dead(dead)
    await backing.declare_dead(scene.owner)
    assert await scene.store.orphans() == [scene.queue.queue_id]
    assert await scene.store.claim(scene.queue.queue_id, dead) is None
    assert await scene.store.claim(scene.queue.queue_id, 999) is None
    assert await scene.store.claim(999, scene.owner) is None


async def test_renewal_fails_after_another_node_took_over(scene: Scene, backing: Backing) -> None:
    await depose(scene, backing)
    assert not await scene.store.renew(scene.owner, 60.0)


async def test_a_deposed_owners_writes_are_refused(scene: Scene, backing: Backing) -> None:
    assert await scene.put(scene.segment(10))
    claim = await depose(scene, backing)
    store, queue_id = scene.store, scene.queue.queue_id

    assert not await scene.put(scene.segment(20), batch=2)
    assert not await scene.settle([10])
    assert not await scene.settle([], {10: [(0, 1)]})
    assert not await store.purge(queue_id, scene.epoch, 1000, [])
    assert not await store.release(queue_id, scene.epoch, scene.owner)
    assert await store.reserve_ids(queue_id, scene.epoch, 100) is None

    (left,) = await scene.stored()
    assert (left.first_id, left.open) == (10, 3)
    assert await store.marks(queue_id) == {77: [(1, 2)]}
    assert await scene.put(scene.segment(20), epoch=claim.epoch, batch=2)
    assert await scene.settle([10, 20], epoch=claim.epoch)


async def test_a_fenced_segment_does_not_fail_its_neighbours(
    scene: Scene, backing: Backing
) -> None:
    other = await scene.store.create_queue("others", True)
    assert other is not None
    claim = await scene.store.claim(other.queue_id, scene.owner)
    assert claim is not None
    mine = scene.segment(1, queue_id=other.queue_id)

    flags = await scene.put_all(
        [
            (mine, claim.epoch, 1),
            (scene.segment(10), scene.epoch + 7, 1),
            (scene.segment(20), scene.epoch, 2),
        ]
    )

    assert flags == [True, False, True]
    assert [segment.first_id for segment in await scene.stored()] == [20]
    assert await scene.store.stored(scene.queue.queue_id, [10, 20, 30]) == {20}


async def test_a_publication_is_all_or_none(scene: Scene) -> None:
    other = await scene.store.create_queue("others", True)
    assert other is not None
    claim = await scene.store.claim(other.queue_id, scene.owner)
    assert claim is not None
    messages = scene.segment(
        0,
        priority=7,
        senders=[3],
        receivers=[4],
        contexts=[5, None, 6],
        attributes=[Attributes("text/plain", {"a": "b"}), None, None],
        payload=b"all",
    )

    def publication(epoch: int, batch: int) -> Publication:
        targets = [
            PublicationTarget(scene.queue.queue_id, scene.epoch, 100, []),
            PublicationTarget(other.queue_id, epoch, 200, [(0, 2)]),
        ]
        return Publication(messages, targets, [8], [batch])

    assert not await scene.store.transact([], [], [publication(claim.epoch + 1, 1)])
    assert await scene.stored() == []
    assert await scene.store.transact([], [], [publication(claim.epoch, 2)])
    (segment,) = await scene.stored()
    assert (segment.first_id, segment.priority, segment.senders) == (100, 7, [3])
    assert (segment.receivers, segment.contexts) == ([4], [5, None, 6])
    assert segment.attributes == messages.attributes
    assert bytes(segment.payload) == b"all"
    (there,) = await scene.store.read_lane(other.queue_id, 7, True, 0, 1000, 10, 1000)
    assert (bytes(there.payload), there.open_ranges()) == (b"all", [(2, 3)])
    (lane,) = await scene.store.lanes(other.queue_id)
    assert (lane.count, lane.payload_bytes) == (1, 3)
    assert await scene.store.marks(other.queue_id) == {8: [(2, 3)]}


async def test_writes_and_settlements_of_several_queues_are_all_or_none(scene: Scene) -> None:
    store = scene.store
    other = await store.create_queue("others", True)
    assert other is not None
    claim = await store.claim(other.queue_id, scene.owner)
    assert claim is not None
    await scene.put(scene.segment(10))
    settlement = Settlement(scene.queue.queue_id, scene.epoch)
    settlement.partly = {10: [(0, 1)]}

    def write(epoch: int) -> Write:
        return Write(scene.segment(1, queue_id=other.queue_id), epoch, [8], [1], ["once"])

    assert not await store.transact([write(claim.epoch + 1)], [settlement])
    assert await store.stored(other.queue_id, [1]) == set()
    assert await store.dedup_ids(other.queue_id, 2.0**30) == {}
    assert [segment.open for segment in await scene.stored()] == [3]
    settlement.epoch += 1
    assert not await store.transact([write(claim.epoch)], [settlement])
    assert await store.stored(other.queue_id, [1]) == set()

    settlement.epoch -= 1
    assert await store.transact([write(claim.epoch)], [settlement])
    assert await store.stored(other.queue_id, [1]) == {1}
    assert list(await store.dedup_ids(other.queue_id, 2.0**30)) == ["once"]
    assert [segment.open_ranges() for segment in await scene.stored()] == [[(1, 3)]]
    # Again, as after a lost answer: whoever asks is told to look it up.
    with pytest.raises(Unavailable):
        await store.transact([write(claim.epoch)], [settlement])


async def test_finished_segments_are_removed_when_the_queue_is_loaded(scene: Scene) -> None:
    await scene.put(scene.segment(10))
    await scene.put(scene.segment(20), batch=2)
    await scene.settle([], {10: [(0, 3)], 20: [(0, 1)]})

    assert not await scene.store.drop_done(scene.queue.queue_id, scene.epoch + 1)
    assert [segment.first_id for segment in await scene.stored()] == [10, 20]
    assert await scene.store.drop_done(scene.queue.queue_id, scene.epoch)

    assert [segment.first_id for segment in await scene.stored()] == [20]
    assert await scene.store.marks(scene.queue.queue_id) == {77: [(1, 3)]}


async def test_a_segment_comes_back_as_it_was_stored(scene: Scene) -> None:
    sent = scene.segment(
        10,
        lengths=[0, 2, 3],
        payload=b"\x00\xff123",
        senders=[1, 2, 1],
        receivers=[5, 6, 5],
        contexts=[None, -(2**63), 2**63 - 1],
        attributes=[None, Attributes(None, {"ü": "\u2713"}), Attributes("a/b", None)],
        priority=9,
    )
    await scene.put(sent)

    (segment,) = await scene.stored()

    for column in ("lengths", "senders", "receivers", "contexts", "attributes", "priority"):
        assert getattr(segment, column) == getattr(sent, column), column
    assert bytes(segment.payload) == bytes(sent.payload)
    assert segment.arrived_at == pytest.approx(sent.arrived_at, abs=1e-5)
    assert segment.reloaded


async def test_acknowledged_offsets_add_up_until_the_segment_is_gone(scene: Scene) -> None:
    await scene.put(scene.segment(10, 10))
    await scene.settle([], {10: [(1, 3)]})
    await scene.settle([], {10: [(5, 6), (2, 4)]})

    (segment,) = await scene.stored()
    assert segment.open_ranges() == [(0, 1), (4, 5), (6, 10)]
    (lane,) = await scene.store.lanes(scene.queue.queue_id)
    assert (lane.count, lane.first_id, lane.last_id, lane.payload_bytes) == (6, 10, 19, 10)
    # Settling twice changes nothing.
    await scene.settle([], {10: [(1, 3)]})
    await scene.settle([10])
    await scene.settle([10])
    assert await scene.stored() == []
    assert await scene.store.marks(scene.queue.queue_id) == {77: [(1, 2)]}


async def test_lanes_are_read_in_order_within_count_and_bytes(scene: Scene) -> None:
    for first_id in (30, 10, 20, 40):
        await scene.put(scene.segment(first_id), batch=first_id)
    await scene.put(scene.segment(50, priority=9), batch=50)
    await scene.put(scene.segment(60, receivers=[1, 1, 2]), batch=60)
    store, queue_id = scene.store, scene.queue.queue_id

    async def read(*limits: int, addressed: bool = False) -> list[int]:
        found = await store.read_lane(queue_id, 5, addressed, *limits)
        return [segment.first_id for segment in found]

    assert await read(0, 100, 100, 1000) == [10, 20, 30, 40]
    assert await read(11, 30, 100, 1000) == [20, 30]
    assert await read(0, 100, 2, 1000) == [10, 20]
    assert await read(0, 100, 100, 4) == [10, 20], "until the bytes are reached"
    assert await read(0, 100, 100, 1) == [10], "at least one"
    assert await read(0, 100, 100, 1000, addressed=True) == [60]
    lanes = await store.lanes(queue_id)
    assert sorted((lane.priority, lane.addressed, lane.count) for lane in lanes) == [
        (5, False, 12),
        (5, True, 3),
        (9, False, 3),
    ]


async def test_a_lane_is_as_old_as_what_came_first_whatever_its_id(scene: Scene) -> None:
    for first_id, arrived_at in (
        (10, 1_700_000_020.5),
        (20, 1_700_000_000.25),
        (30, 1_700_000_030),
    ):
        await scene.put(scene.segment(first_id, arrived_at=arrived_at), batch=first_id)

    (lane,) = await scene.store.lanes(scene.queue.queue_id)

    assert (lane.first_id, lane.arrived_at) == (10, 1_700_000_000.25)


async def test_searching_finds_by_receiver_sender_and_context(scene: Scene) -> None:
    await scene.put(scene.segment(10, senders=[1, 2, 1]), batch=1)
    await scene.put(scene.segment(20, receivers=[5, 6, 5], contexts=[None, 9, None]), batch=2)
    await scene.put(scene.segment(30, senders=[3], contexts=[9, 9, 8]), batch=3)
    store, queue_id = scene.store, scene.queue.queue_id

    async def find(
        from_id: int,
        receiver: int,
        sender: int | None,
        context: int | None,
        priority: int | None = None,
    ) -> list[int]:
        found = await store.find_segments(
            queue_id, from_id, receiver, sender, context, priority, 10
        )
        return [segment.first_id for segment in found]

    assert await find(0, 5, None, None) == [20]
    assert await find(0, 7, None, None) == []
    assert await find(21, 5, None, None) == []
    assert await find(0, 7, 2, None) == [10]
    assert await find(0, 6, None, 9) == [20, 30]
    assert await find(0, 7, None, 9) == [30]
    assert await find(0, 7, 3, 8) == [30]
    assert await find(0, 7, 1, 8) == []
    assert await find(0, 6, None, 9, 5) == [20, 30]
    assert await find(0, 6, None, 9, 4) == []


async def test_batches_are_remembered_while_they_live_and_after(scene: Scene) -> None:
    queue_id = scene.queue.queue_id
    for batch in (1, 2, 4):
        await scene.put(scene.segment(10 * batch), batch=batch)
    await scene.settle([10, 40])

    assert await scene.store.marks(queue_id) == {77: [(1, 3), (4, 5)]}
    assert await scene.store.forget_marks(3600) == 0
    assert await scene.store.forget_marks(-1) == 1
    assert await scene.store.marks(queue_id) == {77: [(2, 3)]}, "what lives is known by itself"


async def test_a_purge_and_acknowledgements_never_wait_for_each_other(scene: Scene) -> None:
    # They take the rows of segments and of what is done in opposite order: a deadlock, once.
    for first_id in range(10, 10 + 400, 10):
        await scene.put(scene.segment(first_id), batch=first_id)
        await scene.settle([], {first_id: [(0, 1)]})
        settled, purged = await asyncio.gather(
            scene.settle([first_id]),
            scene.store.purge(scene.queue.queue_id, scene.epoch, first_id + 1, []),
        )
        assert settled
        assert purged


async def test_purge_keeps_what_it_is_told_to(scene: Scene) -> None:
    for first_id in (10, 20, 30, 40):
        await scene.put(scene.segment(first_id), batch=first_id)
    await scene.settle([], {20: [(0, 1)]})

    assert await scene.store.purge(scene.queue.queue_id, scene.epoch, 40, [20])

    left = [(segment.first_id, segment.open) for segment in await scene.stored()]
    assert left == [(20, 2), (40, 3)], "what came after the purge began is not its business"


async def test_a_deleted_queue_leaves_nothing(scene: Scene) -> None:
    await scene.put(scene.segment(10))
    assert await scene.store.delete_queue(scene.queue.queue_id)
    assert not await scene.store.delete_queue(scene.queue.queue_id)
    assert not await scene.put(scene.segment(20), batch=2)
    assert await scene.store.locate(scene.queue.queue_id) is None
    assert await scene.store.lanes(scene.queue.queue_id) == []
    assert await scene.store.marks(scene.queue.queue_id) == {}


async def test_ids_are_reserved_in_blocks(scene: Scene) -> None:
    first = await scene.store.reserve_ids(scene.queue.queue_id, scene.epoch, 100)
    second = await scene.store.reserve_ids(scene.queue.queue_id, scene.epoch, 50)
    assert first is not None
    assert second == first + 50


async def test_a_member_that_leaves_gives_its_queues_up(scene: Scene) -> None:
    await scene.store.leave(scene.owner)
    assert await scene.store.members() == []
    assert await scene.store.orphans() == [scene.queue.queue_id]


async def test_second_node_at_an_address_replaces_the_first(scene: Scene) -> None:
    again = await scene.store.join("owner again", "tidegate://there:1", 60.0)
    assert [m.member_id for m in await scene.store.members()] == [again]
    assert await scene.store.claim(scene.queue.queue_id, again) is not None


async def test_a_reserved_name_is_nobody_until_it_registers(store: Store) -> None:
    reserved = await store.reserve_client("later")
    assert await store.find_client(reserved, None) is None
    assert await store.find_client(None, "later") is None
    assert not await store.delete_client(reserved)
    assert await store.reserve_client("later") == reserved
    client = await store.register_client("later", ClientMode.ADMIN)
    assert client is not None
    assert (client.client_id, client.mode) == (reserved, ClientMode.ADMIN)
    assert await store.register_client("later", ClientMode.ADMIN) is None
    assert await store.find_client(reserved, None) == client


# PostgreSQL only


on_sql = pytest.mark.parametrize("backing", SQL_STORES, indirect=True)


@on_sql
async def test_the_message_view_shows_every_message_with_its_fields(
    backing: PostgresBacking, scene: Scene
) -> None:
    await scene.put(
        scene.segment(
            10,
            lengths=[3, 0, 3],
            payload=b"onetwo",
            senders=[1, 2, 3],
            contexts=[7, None, 8],
            attributes=[Attributes("text/plain", {"a": "b"}), None, None],
        )
    )
    await scene.put(scene.segment(20, receivers=[5, 6, 5]), batch=2)
    await scene.settle([], {20: [(0, 2)]})

    with psycopg.connect(backing.url) as connection:
        rows = connection.execute(
            "select message_id, queue_name, sender_id, receiver_id, context, priority,"
            " content_type, headers, message from message order by message_id"
        ).fetchall()

    assert rows == [
        (10, "orders", 1, None, 7, 5, "text/plain", {"a": "b"}, b"one"),
        (11, "orders", 2, None, None, 5, None, None, b""),
        (12, "orders", 3, None, 8, 5, None, None, b"two"),
        (22, "orders", 1, 5, None, 5, None, None, b"x"),
    ]


@on_sql
async def test_the_message_view_says_before_when_a_message_is_not_delivered(
    backing: PostgresBacking, scene: Scene
) -> None:
    await scene.put(scene.segment(10))
    await scene.put(scene.segment(20, due_at=5000.0), batch=2)
    settlement = Settlement(scene.queue.queue_id, scene.epoch)
    settlement.attempts = {
        (10, 1): FailedDelivery(1, 6000.0, []),
        (20, 2): FailedDelivery(1, 7000.0, []),
    }
    assert await scene.store.settle([settlement]) == [True]

    with psycopg.connect(backing.url) as connection:
        rows = connection.execute(
            "select message_id, extract(epoch from due_at)::int from message order by message_id"
        ).fetchall()

    assert rows == [(10, None), (11, 6000), (12, None), (20, 5000), (21, 5000), (22, 7000)]


@on_sql
async def test_nodes_that_start_together_migrate_once(backing: PostgresBacking) -> None:
    stores = [PostgresStore(backing.url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))

    with psycopg.connect(backing.url) as connection:
        rows = connection.execute("select number, name from migration order by number").fetchall()
    assert rows == [(number, name) for number, name, _ in migration_files()]


@on_sql
async def test_a_store_of_another_version_is_left_alone(backing: PostgresBacking) -> None:
    first, second = PostgresStore(backing.url), PostgresStore(backing.url)
    await first.open()
    with psycopg.connect(backing.url) as connection:
        connection.execute("update migration set name = 'of_old' where number = 2")
    with pytest.raises(InvalidValue, match="another development version"):
        await second.open()
    await asyncio.gather(first.close(), second.close())


@on_sql
async def test_a_taker_waits_for_a_writer_and_a_writer_for_a_taker(
    backing: PostgresBacking, scene: Scene
) -> None:
    """A plain read of the epoch would race a takeover."""
    await backing.declare_dead(scene.owner)
    taker = await scene.store.join("taker", "tidegate://here:2", 60.0)
    async with await psycopg.AsyncConnection.connect(backing.url) as taking:
        await taking.execute("select * from claim_queue(%s, %s)", (scene.queue.queue_id, taker))
        writing = asyncio.create_task(scene.put(scene.segment(10)))
        async with await psycopg.AsyncConnection.connect(backing.url, autocommit=True) as watch:

            async def does_it_wait() -> bool:
                assert not writing.done(), "the write waits for the takeover under way"
                waits = await watch.execute(
                    "select from pg_stat_activity where application_name = %s"
                    " and %s = any(pg_blocking_pids(pid))",
                    (backing.schema, taking.info.backend_pid),
                )
                return await waits.fetchone() is not None

            await eventually_async(does_it_wait)
        await taking.commit()
    assert not await writing
    assert await scene.stored() == []
