"""HAProxy under Tidegate's control in a child process: the door and its loop.

It runs the same code as `tidegate door --engine haproxy`, with an in-memory store. The loop polls
the store four times a second, and reads HAProxy's counters and its request log each second. The
process also changes one weight each second, which is the most that a leader would do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec
import uvloop

from tidegate.control.services.door import DoorLoop
from tidegate.core.services import Engine, InstanceState, ServiceSpec
from tidegate.doors import DoorSettings
from tidegate.doors.haproxy.door import HaproxyDoor
from tidegate.storage.memory import MemoryStore
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.papers.tapas.clients import agreement_text
from tidegate_lab.papers.tapas.shops import TARGET, WELL_PATH

_SERVICE = "shop"
_ORDER_S = 1.0
_CONCURRENCY = 1000
_ANSWER_TIMEOUT_S = 60.0


class HaproxyDoorProcess:
    """The parent's side of the process, whose child is HAProxy."""

    def __init__(self, child: Child, port: int) -> None:
        self.pid = child.pid
        self.port = port


@contextlib.contextmanager
def haproxy_door_process(server_ports: Sequence[int]) -> Iterator[HaproxyDoorProcess]:
    """Run the door in front of servers on loopback ports until the block ends."""
    arguments = [msgspec.json.encode(list(server_ports)).decode()]
    with Child("tidegate_lab.papers.tapas.haproxy_door_process", arguments) as child:
        yield HaproxyDoorProcess(child, child.hear(int, _ANSWER_TIMEOUT_S))


async def _serve(server_ports: Sequence[int]) -> None:
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    store = MemoryStore()
    epoch = await store.lead(await store.join("lab", "tidegate://127.0.0.1:1", 3600.0))
    assert epoch is not None, "nobody else leads a store of our own"
    instances = await _deploy(store, server_ports, epoch)
    door = HaproxyDoor(
        DoorSettings(
            _SERVICE,
            balancing="least-outstanding",
            session_secret=secrets.token_bytes(16),
            health_path=WELL_PATH,
        )
    )
    await door.start()
    try:
        following = DoorLoop(door, store, _SERVICE)
        await following.run_once()
        tasks = [
            asyncio.create_task(following.run()),
            asyncio.create_task(_order(store, instances, epoch)),
        ]
        answer(urlsplit(door.address).port)
        # Serve until the parent closes the input.
        await questions.read()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await door.stop(0.0)


async def _deploy(store: MemoryStore, server_ports: Sequence[int], epoch: int) -> list[int]:
    """Deploy a service whose instances are the given servers, and return the instances' ids."""
    await store.deploy(
        ServiceSpec(
            name=_SERVICE,
            target=TARGET,
            agreement=agreement_text(1, len(server_ports)),
            concurrency=_CONCURRENCY,
            engine=Engine.HAPROXY,
            balancing="least-outstanding",
            sticky=True,
            health_path=WELL_PATH,
        )
    )
    machine = await store.add_machine("lab", len(server_ports), None, epoch)
    instances = []
    for port in server_ports:
        instance = await store.add_instance(_SERVICE, 1.0, epoch)
        await store.assign_instance(instance.instance_id, machine.machine_id, epoch)
        await store.report_instance(
            *(instance.instance_id, machine.machine_id, InstanceState.READY),
            *(f"127.0.0.1:{port}", None, ""),
        )
        instances.append(instance.instance_id)
    return instances


async def _order(store: MemoryStore, instances: Sequence[int], epoch: int) -> None:
    chance = random.Random(7)
    while True:
        await asyncio.sleep(_ORDER_S)
        await store.set_instance(
            chance.choice(instances), epoch, weight=round(chance.uniform(0.9, 1.0), 3)
        )


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=list[int])))
