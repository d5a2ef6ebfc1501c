"""The embedded door: memory that is told, its connections, and who talks."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets
from bookshop import bookshops
from http_client import Connection, ask
from stall import stalls

from tidegate.cli.door import make_door
from tidegate.control.services.door import DoorLoop
from tidegate.core.services import Backend, InstanceState, Service, ServiceSpec
from tidegate.doors import DoorSettings
from tidegate.doors.gateway import GatewayDoor
from tidegate.storage.memory import MemoryStore

SECRET = "a secret of the tests"
SETTINGS = DoorSettings(
    "shop",
    health_path="/well",
    balancing="workload",
    session_secret=SECRET.encode(),
)


@pytest.fixture
async def door() -> AsyncIterator[GatewayDoor]:
    opened = GatewayDoor(SETTINGS)
    await opened.start()
    yield opened
    await opened.stop(timeout_s=0.0)


def port_of(door: GatewayDoor) -> int:
    return int(door.address.rpartition(":")[2])


class Hosted:
    """A store with one service, and what its leader and its machine say."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.epoch = self.machine = 0

    async def deploy(self) -> None:
        epoch = await self.store.lead(await self.store.join("leader", "tidegate://here:1", 60.0))
        assert epoch is not None
        self.epoch = epoch
        spec = ServiceSpec(name="shop", target="shop:app", agreement="", sticky=True)
        await self.store.deploy(spec)
        self.machine = (await self.store.add_machine("process", 4, None, epoch)).machine_id

    async def order(self) -> int:
        made = await self.store.add_instance("shop", 1.0, self.epoch)
        assert await self.store.assign_instance(made.instance_id, self.machine, self.epoch)
        return made.instance_id

    async def report(self, number: int, port: int, free: float | None) -> None:
        assert await self.store.report_instance(
            number, self.machine, InstanceState.READY, f"127.0.0.1:{port}", free, ""
        )


async def test_availability_index_grows_with_free_memory(door: GatewayDoor) -> None:
    hosted = Hosted()
    await hosted.deploy()
    loop = DoorLoop(door, hosted.store, "shop")
    async with stalls(2) as (one, two):
        for stall, free in ((one, 4e9), (two, 1e9)):
            await hosted.report(await hosted.order(), stall.port, free)
        await loop.run_once()
        servers = door._gateway._servers
        assert [server.free_memory_bytes for server in servers] == [4e9, 1e9]
        servers.measure(time.monotonic())
        first, second = servers
        assert first.index > second.index

        # What changes is told, and what is not known any more stays as it was said last.
        await hosted.report(1, one.port, 1e8)
        await hosted.report(2, two.port, None)
        await loop.run_once()
        servers.measure(time.monotonic())
        assert first.index < second.index


async def test_a_door_may_have_as_many_connections_as_its_user() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    door = GatewayDoor(SETTINGS)
    try:
        await door.start()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        await door.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_policy_of_the_users_own_is_what_a_door_of_the_service_balances_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_of_a_door.py").write_text(
        "class Last:\n"
        "    def choose(self, candidates, asker, family):\n"
        "        return max(candidates, key=lambda one: one.name)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = ServiceSpec(
        name="shop", target="shop:app", agreement="", balancing="policy_of_a_door:Last"
    )
    door = make_door(Service(spec=spec, version=1, secret="s" * 32), "127.0.0.1", 0, None)
    await door.start()
    try:
        async with stalls(3) as stands:
            await door.set_backends([one.backend() for one in stands])
            answers = [await ask(int(door.address.rpartition(":")[2])) for _ in range(10)]
        assert {one.body for one in answers} == {b"i3"}
    finally:
        await door.stop(timeout_s=0.0)


async def test_open_websocket_takes_a_place_and_is_no_request_in_hand(door: GatewayDoor) -> None:
    async with bookshops("a") as (shop,):
        await door.set_backends([Backend(instance_id=1, host="127.0.0.1", port=shop.port)])
        await door.set_admission(1)
        async with websockets.connect(f"ws://127.0.0.1:{port_of(door)}/talk") as talk:
            await talk.send("one")
            assert await talk.recv() == "one"
            sample = await door.sample()
            assert (sample.in_flight, sample.unanswered) == (0, [])
            assert [one.outstanding for one in sample.instances] == [1]
            # Nobody is refused for it, though one request is all that is let in.
            async with await Connection.to(port_of(door)) as client:
                assert (await client.ask()).status == 200
