"""Two nodes on one store, that nobody starts again: what one of them has begun the other ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from backing import PostgresBacking
from hosted import Hosted, Load
from waiting import eventually

from tidegate.fleet.process import KEEPER_VARIABLE, process_identity
from tidegate.fleet.providers import ProcessProvider
from tidegate_lab.faults.deployment import JoinedNode, joined_node

ENOUGH = 60
LEADER = "select address from leader join member using (member_id)"


@pytest.fixture
def url(embedded_url: str) -> Iterator[str]:
    contents = PostgresBacking("embedded", embedded_url)
    yield contents.url
    contents.give_back()


@pytest.fixture
def nodes(url: str) -> Iterator[list[JoinedNode]]:
    """The first one leads."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-two-nodes-"))
    environment = {
        "TIDEGATE_FLEET__PROVIDER": "process",
        "TIDEGATE_STORE__DATA": str(folder / "data"),
        # Should we be killed, the machines end by themselves.
        KEEPER_VARIABLE: str(process_identity(os.getpid())),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(lambda: asyncio.run(machines_end(folder / "data" / "fleet")))
        yield [
            stack.enter_context(joined_node(url, folder, environment=environment)) for _ in range(2)
        ]


async def machines_end(fleet: Path) -> None:
    provider = ProcessProvider(fleet, halt_s=10.0, store_urls=[])
    for machine in await provider.list():
        await provider.halt(machine.machine_id)


def leader(url: str) -> str:
    """Where whoever leads is reached."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        found = connection.execute(LEADER).fetchone()
    return "" if found is None else str(found[0])


def test_a_deploy_whose_leader_is_killed_is_finished_by_the_other_node(
    url: str, nodes: list[JoinedNode]
) -> None:
    first, second = nodes
    hosted = Hosted(store=url)
    try:
        assert leader(url) == first.address
        code = (hosted.code / "hosted_shop.py").read_text()
        hosted.write_code(code.replace('VERSION = "one"', 'VERSION = "two"'))
        with Load(hosted.address) as load, hosted.deploying() as deploying:
            eventually(
                lambda: any(one.body.startswith("two") for one in load.answers),
                "the first new one serves",
            )
            first.process.kill()
            _, said = deploying.communicate(timeout=90)
            there = len(load.answers)
            eventually(lambda: len(load.answers) > there + ENOUGH, "load goes on")

        assert deploying.returncode == 0, said.decode()
        assert load.failed == []
        assert leader(url) == second.address
        assert {one.body.split()[0] for one in load.answers[-ENOUGH:]} == {"two"}
    finally:
        hosted.end()
