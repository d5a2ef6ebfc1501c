"""TLS: verified by clients and among nodes, and never less than asked for."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from backing import Connect, StartNode
from certificates import Certificate, authority, need_openssl, signed
from people import PASSWORD, add_user, login, user
from waiting import eventually_async

from tidegate.broker.node import Node, NodeTls
from tidegate.client.address import parse_url, verifying_context
from tidegate.client.connect import connect as tidegate_connect
from tidegate.core.errors import InvalidValue, IoFailure, NotAuthenticated, TidegateError
from tidegate.core.runtime import NodeLimits
from tidegate.storage.memory import MemoryStore


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    need_openssl()
    return authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ours(ca: Certificate) -> NodeTls:
    node = signed(ca.certificate.parent, ca)
    return NodeTls(node.certificate, node.key, ca.certificate)


async def test_a_client_that_knows_the_authority_gets_in(
    start_node: StartNode, ours: NodeTls, ca: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(tls=ours)
    assert node.address.startswith("tidegates://")
    await add_user(node, "ann", admin="*")
    url = node.address.replace("//", f"//ann:{PASSWORD.replace(' ', '%20')}@")
    async with tidegate_connect(url, ca_file=ca.certificate) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", bytes(1_000_000))
        assert len((await mq.get("orders")).payload) == 1_000_000
    monkeypatch.setenv("TIDEGATE_CA_FILE", str(ca.certificate))
    async with tidegate_connect(url) as mq:
        await mq.ping()
    plain = url.replace("tidegates", "tidegate")
    async with tidegate_connect(plain, tls=True) as mq:
        await mq.ping()


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    start_node: StartNode, ours: NodeTls
) -> None:
    node = await start_node(tls=ours)
    with pytest.raises(NotAuthenticated, match=r"not to be trusted.*ca_file="):
        async with tidegate_connect(node.address):
            pass


async def test_a_certificate_of_another_host_is_refused(
    start_node: StartNode, ca: Certificate, tmp_path: Path
) -> None:
    elsewhere = signed(tmp_path, ca, "DNS:elsewhere.example")
    node = await start_node(tls=NodeTls(elsewhere.certificate, elsewhere.key, ca.certificate))
    with pytest.raises(NotAuthenticated, match="not to be trusted"):
        async with tidegate_connect(node.address, ca_file=ca.certificate):
            pass


async def test_connection_without_the_nodes_tls_setting_is_refused(
    start_node: StartNode, ours: NodeTls, ca: Certificate
) -> None:
    node = await start_node(tls=ours)
    with pytest.raises((TidegateError, IoFailure)):
        async with tidegate_connect(node.address.replace("tidegates", "tidegate")):
            pass
    plain = await start_node()
    with pytest.raises(TidegateError, match=r"TLS|hung up|answers"):
        async with tidegate_connect(
            plain.address.replace("tidegate:", "tidegates:"), ca_file=ca.certificate
        ):
            pass


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_below_1_2_is_refused(
    start_node: StartNode, ours: NodeTls, ca: Certificate
) -> None:
    assert ours.accepting.minimum_version is ssl.TLSVersion.TLSv1_2
    assert verifying_context().minimum_version is ssl.TLSVersion.TLSv1_2
    node = await start_node(tls=ours)
    ((host, port),) = parse_url(node.address)
    for newest in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = ssl.create_default_context(cafile=ca.certificate)
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = newest
        try:
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        except (OSError, ssl.SSLError):
            assert newest is ssl.TLSVersion.TLSv1_1
        else:
            assert newest is ssl.TLSVersion.TLSv1_2
            writer.close()


async def test_nodes_relay_to_each_other_over_tls_with_users(
    start_node: StartNode, connect: Connect, ours: NodeTls
) -> None:
    nodes = [await start_node(tls=ours), await start_node(tls=ours)]
    await add_user(nodes[0], "ann", admin="*")
    at_owner, elsewhere = [
        await connect(node, credentials=login("ann"), tls=ours.calling, mode="admin")
        for node in nodes
    ]
    await at_owner.create_queue("orders")
    await elsewhere.put("orders", b"relayed")
    assert (await elsewhere.get("orders")).payload == b"relayed"
    # And as each other's client: numbers of all nodes, and queues that are brought together.
    assert len((await elsewhere.stats()).nodes) == 2
    await elsewhere.create_queue("bills")
    await elsewhere.put_to(["orders", "bills"], b"both")
    assert (await at_owner.get("bills")).payload == b"both"


async def test_a_node_with_tls_and_users_may_be_reached_and_trusts_nobody(
    ours: NodeTls, ca: Certificate
) -> None:
    store = MemoryStore()
    await store.add_user(user("ann", admin="*"))
    node = Node(store, host="0.0.0.0", advertise="127.0.0.1", tls=ours)
    await node.start()
    try:
        url = node.address.replace("//", f"//ann:{PASSWORD.replace(' ', '%20')}@")
        async with tidegate_connect(url, ca_file=ca.certificate) as mq:
            await mq.ping()
        # Even when the last user goes: it can be reached from outside.
        await store.remove_user("ann")
        await node.accounts.refresh()
        with pytest.raises(NotAuthenticated):
            async with tidegate_connect(node.address, ca_file=ca.certificate):
                pass
    finally:
        await node.stop()


@pytest.mark.parametrize("missing", ["certificate", "key", "both wrong"])
def test_files_that_are_no_certificate_are_named(
    missing: str, ca: Certificate, tmp_path: Path
) -> None:
    node = signed(tmp_path, ca)
    nothing = tmp_path / "nothing.pem"
    files = {
        "certificate": (nothing, node.key),
        "key": (node.certificate, nothing),
        "both wrong": (node.certificate, ca.key),
    }
    with pytest.raises(InvalidValue, match=r"\.pem"):
        NodeTls(*files[missing])


async def test_connection_without_a_tls_handshake_is_closed(
    start_node: StartNode, ours: NodeTls
) -> None:
    node = await start_node(tls=ours, limits=NodeLimits(handshake_s=0.2))
    ((host, port),) = parse_url(node.address)
    for _ in range(4):
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
    await eventually_async(lambda: node.admission.connections == 0)


async def test_strangers_are_counted_before_they_shake_hands(
    start_node: StartNode, ours: NodeTls
) -> None:
    node = await start_node(tls=ours, limits=NodeLimits(handshake_s=600.0, connections_max=8))
    ((host, port),) = parse_url(node.address)
    silent = [await asyncio.open_connection(host, port) for _ in range(20)]
    # Those beyond the strangers' half are turned away at once.
    listening = [asyncio.create_task(reader.read()) for reader, _ in silent]
    await eventually_async(lambda: sum(one.done() for one in listening) == 16)
    assert node.admission.strangers == node.admission.connections == 4
    for _, writer in silent:
        writer.close()
    assert await asyncio.gather(*listening) == [b""] * 20
    await eventually_async(lambda: node.admission.connections == 0)
