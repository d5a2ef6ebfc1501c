"""`tidegate deploy` and `host` on a store that runs ask it what there is before they promise."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from backing import PostgresBacking
from command_line import CommandLine
from free_ports import free_ports

from tidegate.agreements.document import parse_agreement
from tidegate.cli.command_line import FAILED
from tidegate.control.alerts import Alerts
from tidegate.control.journal import Journal
from tidegate.control.services.loop import HostingLoop
from tidegate.core.services import DoorSample, ServiceSpec
from tidegate.core.store import Clock
from tidegate.storage.postgres.store import PostgresStore

pytestmark = [pytest.mark.parametrize("backing", ["embedded"], indirect=True)]

APP = "async def app(scope, receive, send): ...\n"


def agreement(name: str, least: int) -> str:
    return (
        f'name = "{name}"\nhttp = "{name}"\nreplicas = {{ min = {least}, max = 9 }}\n'
        '[metrics.response_p95]\nbreach = "1s"\n'
    )


class Shop:
    """Commands about a shop of three instances, where no settings know of machines."""

    def __init__(self, command_line: CommandLine, folder: Path, url: str) -> None:
        self._command_line = command_line
        self._folder = folder
        self._url = url
        (folder / "shop.toml").write_text(agreement("shop", 3))
        (folder / "code").mkdir()
        (folder / "code" / "shop.py").write_text(APP)

    async def told(self, command: str, *options: str, ends_with: int) -> str:
        finished = await asyncio.to_thread(
            self._command_line,
            *(command, "shop:app", "--agreement", str(self._folder / "shop.toml")),
            *("--ship", str(self._folder / "code"), *options),
            environment={"TIDEGATE_STORE__URL": self._url},
        )
        said = finished.stderr.decode()
        assert finished.returncode == ends_with, said
        return said


@pytest.fixture
def shop(command_line: CommandLine, folder: Path, backing: PostgresBacking) -> Shop:
    return Shop(command_line, folder, backing.url)


@pytest.fixture
async def led(store: PostgresStore) -> PostgresStore:
    """A store whose leader has one machine of four slots, and boots no other."""
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    await store.add_machine("process", 4, None, epoch)
    await store.bound_machines(1, epoch)
    return store


async def test_slots_that_another_service_was_promised_are_not_promised_again(
    shop: Shop, led: PostgresStore
) -> None:
    await led.deploy(ServiceSpec(name="blog", target="a:app", agreement=agreement("blog", 2)))

    said = await shop.told("deploy", "--wait", "0s", ends_with=FAILED)

    assert "3 replicas are needed, and 2 slot(s) are there for it beside 2 of blog" in said
    assert [one.spec.name for one in await led.services()] == ["blog"]

    await led.undeploy("blog")
    await shop.told("deploy", "--wait", "0s", ends_with=0)
    assert [one.spec.name for one in await led.services()] == ["shop"]


async def test_an_offer_of_less_is_what_is_deployed_judged_and_shown(
    shop: Shop, led: PostgresStore, folder: Path
) -> None:
    promised = agreement("shop", 1).replace("[metrics", "capacity = 30\n[metrics", 1)
    promised += "[metrics.throughput]\nbreach = 170\n"
    (folder / "shop.toml").write_text(f'insufficient = "reduce"\n{promised}')

    said = await shop.told("deploy", "--wait", "0s", ends_with=0)

    # 204/s at 30/s each, no busier than 85 %, take 8, and there are 4 slots.
    assert "offered are 4 instance(s), a throughput of 85/s, kept up to 102/s" in said
    (service,) = await led.services()
    _, throughput = parse_agreement(service.spec.agreement, "").metrics
    assert (throughput.warning, throughput.breach) == pytest.approx((102.0, 85.0))

    # When whoever leads looks at it
    _, epoch = await led.leader()
    clock = Clock()
    loop = HostingLoop(led, Journal(led, None, clock.wall), Alerts(), clock=clock)
    await loop.run_once(0.0, epoch)
    loop.reset()

    (service,) = await led.services()
    assert service.detail.startswith("reduced: 8 replicas are needed, and 4 slot(s) are there")


async def test_a_service_that_is_served_already_is_refused_as_one_that_is_not(
    shop: Shop, led: PostgresStore
) -> None:
    await led.deploy(ServiceSpec(name="blog", target="a:app", agreement=agreement("blog", 2)))
    before = await led.deploy(
        ServiceSpec(name="shop", target="shop:app", agreement=agreement("shop", 1))
    )
    port = free_ports()
    door = DoorSample(service="shop", door="1", at=time.time(), address=f"http://127.0.0.1:{port}")
    await led.report_door(door)

    said = await shop.told("host", "--port", str(port), ends_with=FAILED)

    assert "3 replicas are needed, and 2 slot(s) are there for it" in said
    assert before in await led.services()
