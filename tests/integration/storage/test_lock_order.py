"""Whoever changes several rows takes them in one order: nobody waits for who waits for him.

leader → queue → place → replica → member → topology
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from backing import SQL_STORES, PostgresBacking
from waiting import eventually_async

from tidegate.core.model import QueuePolicy
from tidegate.core.store import Store
from tidegate.core.topology import Range, Scaling

pytestmark = pytest.mark.parametrize("backing", SQL_STORES, indirect=True)

ADDRESS = "tidegate://there:1"
# What others hold when they come to the topology, and who takes more than that.
MEETINGS = {
    "the end of a replica, and its owner leaves": (
        "select from replica where queue_id = %(replica)s for update",
        "select leave_cluster(%(member)s)",
    ),
    "a claim, and its dead owner comes back": (
        "select from member where member_id = %(member)s for update",
        "select join_cluster('again', %(address)s, 1.0)",
    ),
    "the end of a replica, and its owner comes back to a store": (
        "select from replica where queue_id = %(replica)s for update",
        "select join_store(%(member)s, 'again', %(address)s, 1.0)",
    ),
    "shares, and a machine goes": (
        "select from place where queue_id = %(replica)s for update",
        "select remove_machine(%(machine)s, %(epoch)s)",
    ),
    "shares, and the queue is deleted": (
        "select from place where queue_id = %(replica)s for update",
        "select delete_queue(%(alias)s)",
    ),
    "a new replica, and the queue is deleted": (
        "select from queue where queue_id = %(alias)s for update",
        "select delete_queue(%(alias)s)",
    ),
}


@pytest.mark.parametrize("meeting", MEETINGS)
async def test_store_calls_do_not_deadlock(
    store: Store, backing: PostgresBacking, meeting: str
) -> None:
    alias = await store.create_queue("orders", True, QueuePolicy())
    assert alias is not None
    member = await store.join("owner", ADDRESS, 60.0)
    epoch = await store.lead(member)
    assert epoch is not None
    assert await store.set_scaling(alias.queue_id, Scaling(replicas=Range(1, 4)))
    machine = await store.add_machine("process", 2, None, epoch)
    place = await store.add_replica(alias.queue_id, epoch, machine_id=machine.machine_id)
    assert place is not None
    assert await store.claim(place.queue_id, member) is not None
    names = {
        "alias": alias.queue_id,
        "replica": place.queue_id,
        "member": member,
        "machine": machine.machine_id,
        "epoch": epoch,
        "address": ADDRESS,
    }
    holds, wants = MEETINGS[meeting]

    async with (
        await psycopg.AsyncConnection.connect(backing.url) as first,
        await psycopg.AsyncConnection.connect(backing.url, autocommit=True) as second,
        await psycopg.AsyncConnection.connect(backing.url, autocommit=True) as watch,
    ):
        await first.execute(holds, names)
        waiting = asyncio.create_task(second.execute(wants, names))
        pid = second.info.backend_pid

        async def does_it_wait() -> bool:
            assert not waiting.done(), "it never met the other"
            return bool((await (await watch.execute(_WAITS, (pid,))).fetchone() or [False])[0])

        await eventually_async(does_it_wait)
        await first.execute("select touch_topologies(array[%(alias)s])", names)
        await first.commit()
        await waiting


_WAITS = "select cardinality(pg_blocking_pids(%s)) > 0"
