"""Clients: Telesto's "Client Manipulation" of table 3.5 and "Setup" of table 4.1, and modes."""

from __future__ import annotations

import asyncio

import pytest
from backing import Connect
from waiting import LIMIT_S

from tidegate.broker import listener
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e


async def test_3_5_request_id_and_4_1_connect_by_name_and_mode_create_a_client(
    node: Node, connect: Connect
) -> None:
    first = await connect(node, name="first", mode="read-only")
    second = await connect(node, name="second", mode="admin")

    assert (first.client_name, first.mode) == ("first", "read-only")
    assert (second.client_name, second.mode) == ("second", "admin")
    assert 0 < first.client_id != second.client_id > 0


async def test_3_5_identify_and_4_1_connect_by_client_id_speak_for_an_existing_client(
    node: Node, connect: Connect
) -> None:
    registered = await connect(node, name="known", mode="read-only")

    again = await connect(node, client_id=registered.client_id)

    assert again.info == registered.info


async def test_a_client_is_found_by_its_name_as_well(node: Node, connect: Connect) -> None:
    registered = await connect(node, name="known")

    again = await connect(node, name="known")

    assert again.client_id == registered.client_id


async def test_3_5_delete_client_frees_its_name_and_forgets_its_id(
    node: Node, connect: Connect
) -> None:
    client = await connect(node, name="leaver", mode="read-only")

    await client.delete_client()

    with pytest.raises(e.ClientNotExisting):
        await connect(node, client_id=client.client_id)
    successor = await connect(node, name="leaver", mode="admin")
    assert successor.client_id != client.client_id


async def test_an_admin_deletes_other_clients_and_nobody_else_does(
    node: Node, connect: Connect
) -> None:
    victim = await connect(node, name="victim")
    other = await connect(node)
    admin = await connect(node, mode="admin")

    with pytest.raises(e.ModeForbids):
        await other.delete_client(victim.client_id)
    await admin.delete_client(victim.client_id)

    with pytest.raises(e.ClientNotExisting):
        await admin.delete_client(victim.client_id)


async def test_a_client_without_a_name_is_forgotten_soon_after_its_connection_ends(
    node: Node, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_EPHEMERAL_S", 0.01)
    passing = await connect(node)
    assert await node.store.find_client(passing.client_id, None) is not None

    await passing.close()

    async with asyncio.timeout(LIMIT_S):
        while await node.store.find_client(passing.client_id, None) is not None:
            pass


async def test_a_name_keeps_its_mode(node: Node, connect: Connect) -> None:
    await connect(node, name="reader", mode="read-only")

    with pytest.raises(e.InvalidValue, match="read_only"):
        await connect(node, name="reader", mode="admin")


async def test_4_1_ping_returns_the_round_trip_time(mq: Client) -> None:
    assert 0 < await mq.ping() < 5


async def test_a_name_can_be_addressed_before_anyone_has_it(node: Node, connect: Connect) -> None:
    asker = await connect(node)
    reserved = await asker.client_id_of("later")

    with pytest.raises(e.ClientNotExisting):
        await connect(node, client_id=reserved)
    latecomer = await connect(node, name="later")

    assert latecomer.client_id == reserved
    assert await (await connect(node)).client_id_of("later") == reserved


async def test_a_read_only_client_reads_and_does_not_write(node: Node, connect: Connect) -> None:
    writer = await connect(node)
    await writer.create_queue("orders")
    await writer.put("orders", b"1")
    reader = await connect(node, mode="read-only")

    for forbidden in (
        reader.create_queue("mine"),
        reader.delete_queue("orders"),
        reader.purge("orders"),
        reader.put("orders", b"2"),
        reader.put_many("orders", [b"2"]),
        reader.put_to(["orders"], b"2"),
    ):
        with pytest.raises(e.ModeForbids):
            await forbidden

    assert (await reader.browse("orders"))[0].payload == b"1"
    assert (await reader.get("orders")).payload == b"1"


async def test_only_an_admin_steers(node: Node, connect: Connect) -> None:
    writer = await connect(node)
    admin = await connect(node, mode="admin")
    await admin.create_queue("orders")

    with pytest.raises(e.ModeForbids):
        await writer.set_owner("orders", node.member_id)
    with pytest.raises(e.ModeForbids):
        await writer.set_consumer_prefetch("orders", writer.client_id, 1, 5)
    await admin.set_owner("orders", node.member_id)


@pytest.mark.parametrize("name", ["", "  ", "a\x00b", "bell\x07", "x" * 256])
async def test_a_bad_name_is_refused_with_a_sentence(
    name: str, node: Node, connect: Connect
) -> None:
    with pytest.raises(e.CallerError):
        await connect(node, name=name)
    mq = await connect(node)
    with pytest.raises(e.CallerError):
        await mq.create_queue(name)
    with pytest.raises(e.CallerError):
        await mq.queue(name)
    with pytest.raises(e.CallerError):
        await mq.client_id_of(name)


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**40, -(2**63), 2**63 - 1, 2**64 - 1])
async def test_a_number_that_nobody_has_is_not_found(
    number: int, node: Node, connect: Connect
) -> None:
    mq = await connect(node, mode="admin")

    with pytest.raises((e.ClientNotExisting, e.InvalidValue)):
        await mq.delete_client(number)
    with pytest.raises((e.ClientNotExisting, e.InvalidValue)):
        await connect(node, client_id=number)
    with pytest.raises((e.QueueNotExisting, e.InvalidValue)):
        await mq.queue(number)
    with pytest.raises((e.QueueNotExisting, e.InvalidValue)):
        await mq.get(number)
