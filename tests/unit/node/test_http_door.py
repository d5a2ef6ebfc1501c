"""The HTTP door of a running node: its pages, and that bad visitors cost themselves only."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from backing import TurnedClock
from http_get import families, get, parsed, send, value
from waiting import LIMIT_S, eventually_async

from tidegate.broker.http import NodePages
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import NodeLimits
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.http_pages import CONNECTIONS_MAX


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def node(clock: TurnedClock) -> AsyncIterator[Node]:
    node = Node(MemoryStore(), name="node-1", clock=clock, limits=NodeLimits(lease_s=60.0))
    await node.start()
    yield node
    await node.stop()


@pytest.fixture
async def door(node: Node) -> AsyncIterator[str]:
    """Its address."""
    door = NodePages(
        node.stats, node.membership, queues_max=5, request_s_max=LIMIT_S, answer_s_max=LIMIT_S
    )
    await door.start()
    yield node.metrics_address
    await door.stop()


@pytest.fixture
async def hasty_door(node: Node) -> AsyncIterator[str]:
    """The address of one that waits half a second for a request."""
    door = NodePages(node.stats, node.membership, request_s_max=0.5)
    await door.start()
    yield node.metrics_address
    await door.stop()


async def test_metrics_are_the_live_numbers(node: Node, door: str) -> None:
    async with Client(node.address) as mq:
        await mq.create_queue("orders")
        await mq.put_many("orders", [b"x"] * 10)
        held = [await mq.get("orders", lease=60) for _ in range(4)]
        await held[0].ack_confirmed()
        await held[1].release()
        async with mq.subscribe("orders", prefetch=2):
            page = await get(door, "/metrics")

    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = families(page.body)
    of_orders = {"node": "node-1", "queue": "orders"}
    expected = {
        "tidegate_queue_confirmed_total": 10,
        "tidegate_queue_unacknowledged_messages": 4,
        "tidegate_queue_waiting_messages": 5,
        "tidegate_queue_acknowledged_total": 1,
        "tidegate_queue_returned_total": 1,
        "tidegate_queue_refused_total": 0,
        "tidegate_queue_prefetch_messages": 2,
        "tidegate_queue_consumers": 1,
    }
    assert {name: value(found, name, **of_orders) for name in expected} == expected
    assert value(found, "tidegate_queue_wait_seconds", le="+Inf", **of_orders) >= 4
    assert value(found, "tidegate_node_connections", node="node-1") == 1
    assert value(found, "tidegate_node_commit_seconds", le="1800.0", node="node-1") >= 1
    assert value(found, "tidegate_node_packets_received_total") > 0
    assert value(found, "tidegate_node_memory_process_bytes") > 1e6


async def test_metrics_count_the_ends_of_messages(
    node: Node, clock: TurnedClock, door: str
) -> None:
    async with Client(node.address) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"hopeless")
        await (await mq.get("orders", lease=60)).reject(error="no")
        await mq.put("orders", b"once", dedup_id="1")
        await mq.put("orders", b"twice", dedup_id="1")
        await mq.put("orders", b"short-lived", ttl=1)
        await mq.put("orders", b"later", delay=1000)
        await mq.pause("orders")
        clock.turn(2.0)

        async def found(name: str, expected: float) -> bool:
            page = families((await get(door, "/metrics")).body)
            return value(page, name, queue="orders") == expected

        for name, expected in {
            "tidegate_queue_dead_lettered_total": 1,
            "tidegate_queue_deduplicated_total": 1,
            "tidegate_queue_expired_total": 1,
            "tidegate_queue_delayed_messages": 1,
            "tidegate_queue_dropped_total": 0,
            "tidegate_queue_paused": 1,
        }.items():
            await eventually_async(lambda name=name, expected=expected: found(name, expected))  # type: ignore[misc]


async def test_a_delay_that_was_asked_for_is_no_wait(
    node: Node, clock: TurnedClock, door: str
) -> None:
    async with Client(node.address) as mq:
        await mq.create_queue("orders")
        put_at_s = clock.monotonic()
        await mq.put("orders", b"later", delay=30)
        clock.turn(31.0)
        await mq.get("orders", wait=LIMIT_S)
        taken_after_s = clock.monotonic() - put_at_s

    found = families((await get(door, "/metrics")).body)

    waits = found["tidegate_queue_wait_seconds"].samples
    (sum_s,) = (one.value for one in waits if one.name.endswith("_sum"))
    assert value(found, "tidegate_queue_wait_seconds", le="+Inf") == 1
    # The one clock runs a little between two looks, the other is rounded.
    assert 0.9 <= sum_s <= taken_after_s - 30 + 0.1


async def test_queues_beyond_the_bound_are_counted_and_the_choice_is_stable(
    node: Node, door: str
) -> None:
    async with Client(node.address) as mq:
        for n in range(8):
            await mq.create_queue(f"queue-{n}")
            await mq.put(f"queue-{n}", b"x")

        shown = []
        for _ in range(2):
            found = families((await get(door, "/metrics")).body)
            waiting = found["tidegate_queue_waiting_messages"].samples
            shown.append([sample.labels["queue"] for sample in waiting])

    assert shown == [[f"queue-{n}" for n in range(5)]] * 2
    assert value(found, "tidegate_node_queues") == 8
    assert value(found, "tidegate_node_queues_left_out") == 3


async def test_a_node_that_serves_is_alive_and_ready(door: str) -> None:
    alive = await get(door, "/healthz")
    assert (alive.status, alive.body) == (200, b"alive\n")
    ready = await get(door, "/readyz?verbose=1")
    assert (ready.status, ready.body) == (200, b"ready\n")


async def test_a_node_whose_lease_has_lapsed_is_alive_and_not_ready(
    clock: TurnedClock, door: str
) -> None:
    clock.turn(61.0)

    not_ready = await get(door, "/readyz")

    assert (not_ready.status, b"lease has lapsed" in not_ready.body) == (503, True)
    assert (await get(door, "/healthz")).status == 200


async def test_a_node_that_drains_says_so(node: Node, door: str) -> None:
    await node.stop()

    not_ready = await get(door, "/readyz")

    assert (not_ready.status, not_ready.body.startswith(b"draining")) == (503, True)


async def test_head_has_no_body_and_other_paths_and_verbs_are_refused(door: str) -> None:
    head = await get(door, "/healthz", "HEAD")
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "6", b"")
    assert (await get(door, "/")).status == 404
    posted = await get(door, "/metrics", "POST")
    assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")


MALFORMED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "an older HTTP": (b"GET /metrics\r\n\r\n", 400),
    "a newer HTTP": (b"PRI * HTTP/2.0\r\n\r\n", 400),
    "bytes": (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", 400),
    "a bad host": (b"GET http://[x/metrics HTTP/1.1\r\n\r\n", 400),
    "a long path": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
    "long headers": (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n", 431),
    "no end": (b"x" * 300_000, 431),
}


@pytest.mark.parametrize(("request_bytes", "status"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_request_is_refused_and_the_next_is_served(
    door: str, request_bytes: bytes, status: int
) -> None:
    assert parsed(await send(door, request_bytes)).status == status
    assert (await get(door, "/metrics")).status == 200


async def test_a_slow_request_is_hung_up_on(hasty_door: str) -> None:
    assert parsed(await send(hasty_door, b"GET /metrics HTTP/1.1\r\nX-Slow: ")).status == 408


async def test_visitors_who_never_finish_do_not_keep_others_out(
    node: Node, hasty_door: str
) -> None:
    where = urlsplit(hasty_door)
    silent = [
        await asyncio.open_connection(where.hostname, where.port)
        for _ in range(CONNECTIONS_MAX + 10)
    ]
    async with Client(node.address) as mq:
        await mq.create_queue("orders")
        assert await mq.put("orders", b"x") > 0, "messages have another door"
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()

    # The last of them may be on its way out still.
    async def is_served() -> bool:
        page = await send(hasty_door, b"GET /metrics HTTP/1.1\r\n\r\n")
        return bool(page) and parsed(page).status == 200

    await eventually_async(is_served)


async def test_a_visitor_who_does_not_read_is_hung_up_on(node: Node) -> None:
    async with Client(node.address) as mq:
        for n in range(400):
            await mq.create_queue(f"{'a long name ' * 20}{n}")
            await mq.put(f"{'a long name ' * 20}{n}", b"x")
    door = NodePages(node.stats, node.membership, answer_s_max=0.5)
    await door.start()
    where = urlsplit(node.metrics_address)
    loop = asyncio.get_running_loop()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await loop.sock_connect(deaf, (where.hostname, where.port))
        await loop.sock_sendall(deaf, b"GET /metrics HTTP/1.1\r\n\r\n")
        await eventually_async(lambda: len(door._visits) == 1)
        await eventually_async(lambda: not door._visits)

        heard = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while chunk := await loop.sock_recv(deaf, 65536):
                heard += chunk
    got = parsed(bytes(heard))
    assert len(got.body) < int(got.headers["Content-Length"]), "it was cut off"

    async def is_whole() -> bool:
        page = await get(node.metrics_address, "/metrics")
        return len(page.body) == int(page.headers["Content-Length"])

    await eventually_async(is_whole, "who reads gets all of it")
    await door.stop()


async def test_a_port_that_is_taken_is_said_with_what_to_do(node: Node, door: str) -> None:
    taken = urlsplit(door).port
    assert taken is not None
    with pytest.raises(Unavailable, match=f"on 127.0.0.1:{taken}: .*set metrics.port"):
        await NodePages(node.stats, node.membership, port=taken).start()


async def test_metrics_port_listens_on_loopback_only(door: str) -> None:
    port = urlsplit(door).port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: it tells which address we have towards others.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        other = probe.getsockname()[0]
    if other.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with pytest.raises(OSError, match=r"Connect call failed|refused"):
        await asyncio.open_connection(other, port)
