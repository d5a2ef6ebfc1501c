"""The instances of one machine, without the machine: versions, code that is sent, stuck ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from hosted_modules import body_of, write_shop
from led_fleet import kill
from waiting import eventually_async

from tidegate.core.services import Instance, InstanceState, ServiceSpec
from tidegate.fleet import applications
from tidegate.fleet import applications as app_process
from tidegate.fleet.applications import AppOptions, HostedInstances
from tidegate.fleet.packages import pack_code
from tidegate.storage.memory import MemoryStore

SHOP = ServiceSpec(name="shop", target="shop:app", agreement="")


class OneMachine:
    """A store, a leader's orders, and whoever carries them out."""

    def __init__(self, data: Path) -> None:
        self.store = MemoryStore()
        self.data = data
        self.epoch = self.machine_id = 0

    async def start(self) -> None:
        epoch = await self.store.lead(await self.store.join("leader", "tidegate://here:1", 600.0))
        assert epoch is not None
        self.epoch = epoch
        self.machine_id = (await self.store.add_machine("process", 4, None, epoch)).machine_id
        options = AppOptions(machine_id=self.machine_id, drain_s=5.0)
        self.hosted = HostedInstances(self.store, options, self.data)

    async def order(self) -> int:
        made = await self.store.add_instance("shop", 1.0, self.epoch)
        assert await self.store.assign_instance(made.instance_id, self.machine_id, self.epoch)
        return made.instance_id

    async def until(self, instance_id: int, is_so: Callable[[Instance], bool]) -> Instance:
        async def adjusted() -> Instance | None:
            await self.hosted.adjust(await self.store.instances(), "tidegate://here:1")
            (found,) = (o for o in await self.store.instances() if o.instance_id == instance_id)
            return found if is_so(found) else None

        return await eventually_async(adjusted, pause_s=0.01)

    async def failed(self, instance_id: int) -> str:
        return (await self.until(instance_id, lambda o: o.state is InstanceState.FAILED)).detail

    async def ready_at(self, instance_id: int) -> str:
        found = await self.until(instance_id, lambda o: o.state is InstanceState.READY)
        assert found.address is not None
        return found.address


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[OneMachine]:
    made = OneMachine(tmp_path / "data")
    await made.start()
    yield made
    await made.hosted.stop()


async def test_a_new_version_is_started_beside_the_old_one_and_a_broken_one_leaves_it_alone(
    machine: OneMachine, tmp_path: Path
) -> None:
    store, code = machine.store, tmp_path / "code"

    async def deploy() -> None:
        digest = await store.put_package(pack_code(code))
        await store.deploy(msgspec.structs.replace(SHOP, package=digest))

    write_shop(code, "old")
    await deploy()
    old = await machine.order()
    late = await machine.store.add_instance("shop", 1.0, machine.epoch)
    old_at = await machine.ready_at(old)

    write_shop(code, "new")
    await deploy()
    new = await machine.order()
    assert (await body_of(await machine.ready_at(new))).startswith("new")
    assert (await body_of(old_at)).startswith("old")
    # An old one that comes to a machine now, from one that is gone say, is still the old one.
    assert await store.assign_instance(late.instance_id, machine.machine_id, machine.epoch)
    assert (await body_of(await machine.ready_at(late.instance_id))).startswith("old")

    (code / "shop.py").write_text("import no_such_library")
    await deploy()
    assert "imports 'no_such_library', which is not installed" in await machine.failed(
        await machine.order()
    )
    # The old one dies: it is started again as it was.
    kill(int((await body_of(old_at)).split()[2]))
    assert "signal 9" in await machine.failed(old)
    assert (await body_of(await machine.ready_at(old))).startswith("old")
    assert "no_such_library" in machine.hosted.trouble


async def test_a_machine_that_ends_says_so_before_it_closes_and_lets_them_answer(
    machine: OneMachine, tmp_path: Path
) -> None:
    code = write_shop(tmp_path / "code")
    await machine.store.deploy(msgspec.structs.replace(SHOP, folder=str(code)))
    number = await machine.order()
    address = await machine.ready_at(number)
    slow = asyncio.create_task(body_of(address, "/slow"))
    await eventually_async((code / "begun").exists)

    ending = asyncio.create_task(machine.hosted.stop())

    async def told() -> Instance | None:
        (one,) = await machine.store.instances()
        return None if one.state is InstanceState.READY else one

    known = await eventually_async(told, "the machine says that it ends")
    assert (known.state, known.address) == (InstanceState.DRAINING, address)
    assert (await body_of(address)).startswith("welcome"), "doors need a while to hear of it"
    (code / "go").touch()

    await ending
    assert (await slow).startswith("welcome")


async def test_code_that_is_not_there_is_missed_in_words(machine: OneMachine) -> None:
    await machine.store.deploy(msgspec.structs.replace(SHOP, package="0" * 64))
    number = await machine.order()
    assert await machine.failed(number) == "the store has no code 000000000000…: deploy it again"


async def test_a_folder_that_is_not_there_is_missed_in_words(machine: OneMachine) -> None:
    await machine.store.deploy(msgspec.structs.replace(SHOP, folder="/srv/nowhere"))
    words = await machine.failed(await machine.order())
    assert words == (
        "there is no folder /srv/nowhere on this machine: ship the code, or have it there"
    )


async def test_slow_instance_is_reported_and_hanging_one_restarted(
    machine: OneMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_LATE_S", 0.1), ("_TOO_LATE_S", 0.2), ("_HANGS_S", 0.3)):
        monkeypatch.setattr(applications, name, seconds)
    monkeypatch.setattr(applications, "_ASK_EVERY_S", 0.05)
    monkeypatch.setattr(app_process, "HEALTH_ANSWER_S", 0.1)
    code = write_shop(tmp_path / "code")
    text = (code / "shop.py").read_text()
    waiting = "import time, pathlib\nwhile not pathlib.Path('ok').exists(): time.sleep(0.01)\n"
    (code / "shop.py").write_text(waiting + text)
    await machine.store.deploy(msgspec.structs.replace(SHOP, folder=str(code)))
    number = await machine.order()
    starting = await machine.until(number, lambda one: bool(one.detail))
    assert "shop:app still imports or starts up after" in starting.detail
    assert "200ms: it may hang there" in await machine.failed(number)
    (code / "ok").touch()
    address = await machine.ready_at(number)

    stuck = asyncio.create_task(body_of(address, "/stuck"))
    words = await machine.failed(number)
    stuck.cancel()
    assert words.startswith("shop:app has not answered for ")
    assert words.endswith("and is killed: no answer to GET / within 100ms")
    assert await machine.ready_at(number) != address


async def test_each_instance_says_what_memory_it_has_and_may_still_take(
    machine: OneMachine, tmp_path: Path
) -> None:
    code = write_shop(tmp_path / "code")
    # One of the two allows itself little: 64 MiB more than it has.
    (code / "shop.py").write_text(f"{(code / 'shop.py').read_text()}\n{MODEST}")
    await machine.store.deploy(msgspec.structs.replace(SHOP, folder=str(code)))
    modest, other = await machine.order(), await machine.order()
    assert modest == 1
    for number in (modest, other):
        await machine.ready_at(number)

    def has_said(one: Instance) -> bool:
        return one.resident_bytes is not None and one.free_memory_bytes is not None

    little = await machine.until(modest, has_said)
    much = await machine.until(other, has_said)
    assert little.free_memory_bytes is not None
    assert much.free_memory_bytes is not None
    assert little.free_memory_bytes <= 64 * MEBIBYTE < much.free_memory_bytes
    assert little.resident_bytes is not None
    # More than nothing, and less than all.
    assert 5 * MEBIBYTE < little.resident_bytes < much.free_memory_bytes


MEBIBYTE = 1024 * 1024
MODEST = """
import resource
if os.environ["TIDEGATE_INSTANCE"] == "1":
    (has,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")]
    bound = int(has) * 1024 + 64 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
"""
