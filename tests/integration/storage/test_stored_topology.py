"""Settings of one queue that make no sense keep nobody from the others."""

from __future__ import annotations

import logging

import psycopg
import pytest
from backing import SQL_STORES, Backing, Connect, PostgresBacking, StartNode

from tidegate.core.topology import ControlMode, Range, Scaling
from tidegate.storage.postgres.topology import stored_topologies, stored_topology

SCALING = {"worker": "shop.jobs:app", "replicas": {"min": 2, "max": 4}}


def test_damaged_topology_is_read_without_scaling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = [2, 1, "serving", 1.0, None, "127.0.0.1:7411"]
    row = (1, "spoiled", 7, {**SCALING, "max_load": None}, [place], [1])

    with caplog.at_level(logging.ERROR):
        found = [stored_topology(row) for _ in range(3)]

    assert found[0].scaling == Scaling(
        worker="shop.jobs:app", replicas=Range(2, 4), steering=ControlMode.RECOMMEND
    )
    assert [one.number for one in found[0].replicas] == [1]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'spoiled' is not scaled" in said
    assert "max_load = None" in said


def test_a_row_beyond_reading_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad = (1, "beyond", 7, SCALING, [[2, 1, "flying"]], [])
    good = (2, "fine", 7, SCALING, [], [])

    assert [one.queue for one in stored_topologies([bad, good])] == ["fine"]
    assert "'beyond' is left out" in caplog.text


@pytest.mark.parametrize("backing", SQL_STORES, indirect=True)
async def test_a_spoiled_queue_is_served_and_mended_and_the_others_never_notice(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    for queue in ("orders", "spoiled"):
        await mq.create_queue(queue)
        await mq.set_scaling(queue, Scaling(worker="shop.jobs:app"))
    assert isinstance(backing, PostgresBacking)
    async with await psycopg.AsyncConnection.connect(backing.url, autocommit=True) as connection:
        await connection.execute(
            """update queue set scaling = scaling || '{"max_load": null}'
               where queue_name = 'spoiled'"""
        )

    await node.aliases.poll(again=True)
    assert (await mq.topology("orders")).scaling.steering is ControlMode.AUTO
    spoiled = (await mq.topology("spoiled")).scaling
    assert (spoiled.steering, spoiled.worker) == (ControlMode.RECOMMEND, "shop.jobs:app")
    await mq.put("spoiled", b"all the same")

    await mq.set_scaling("spoiled", Scaling(max_load=100.0))
    assert (await mq.topology("spoiled")).scaling == Scaling(max_load=100.0)
