"""A leader that gives instances their slots, on real machines; alone, a process that may be killed.

python led_hosting.py URL FOLDER        leads until it dies (TIDEGATE_CRASH_POINT says where)
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosted_modules import write_shop
from led_fleet import LOOK_S, FleetUnderTest
from waiting import eventually_async

from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.machines import FleetLoop
from tidegate.control.provisioning import Provisioner
from tidegate.core.services import Instance, InstanceState, ServiceSpec
from tidegate.engines.native.actuator import NativeActuator

Instances = dict[int, Instance]


class LedHosting(FleetUnderTest):
    """A fleet whose leader places what is ordered."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        super().__init__(url, folder, **options)
        self.loop = FleetLoop(
            self.store,
            self.fleet,
            Provisioner(),
            NativeActuator(self.store, self.node.node_clients.request),
            Journal(self.store, None, time.time),
            AcceptedModels(None),
        )

    async def deploy(self, **changes: Any) -> None:
        """A shop, two instances to a machine."""
        code = write_shop(self.folder / "code")
        spec = {"folder": str(code), "slots_per_machine": 2, **changes}
        await self.store.deploy(ServiceSpec(name="shop", target="shop:app", agreement="", **spec))

    async def order(self, weight: float = 1.0) -> int:
        return (await self.store.add_instance("shop", weight, self.epoch)).instance_id

    async def until_instances(
        self, are_so: Callable[[Instances], bool], what: str = ""
    ) -> Instances:
        """Lead until it is so."""
        found: Instances = {}

        async def led() -> bool:
            nonlocal found
            await self.loop.run_once({}, time.monotonic(), self.epoch)
            found = {one.instance_id: one for one in await self.store.instances()}
            return are_so(found)

        await eventually_async(led, what or "the instances are as they should be", pause_s=LOOK_S)
        return found

    async def until_ready(self, *numbers: int) -> list[Instance]:
        found = await self.until_instances(
            lambda now: all(now[number].state is InstanceState.READY for number in numbers),
            f"{numbers} are ready",
        )
        return [found[number] for number in numbers]


async def _lead(url: str, folder: Path) -> None:
    hosting = LedHosting(url, folder)
    await hosting.start()
    await hosting.deploy()
    await hosting.order()
    print(hosting.node.member_id, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await hosting.until_instances(lambda _: False, "nobody killed it")


if __name__ == "__main__":
    asyncio.run(_lead(sys.argv[1], Path(sys.argv[2])))
