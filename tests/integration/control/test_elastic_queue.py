"""Real nodes, a real store, real load: replicas come and go with it, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from elastic import Consumer, Load, Watched, clients, lively, running
from waiting import eventually_async

from tidegate.client.client import Client
from tidegate.core.decisions import AddReplica, Drain, Retire
from tidegate.core.topology import ControlMode
from tidegate_lab.faults.deployment import Deployment, deployed

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    environment = {"TIDEGATE_NODE__LEASE": "2s", "TIDEGATE_TELEMETRY__ENABLED": "false"}
    with deployed(nodes=2, environment=environment) as running_up:
        yield running_up
        # Shown when a test has failed.
        print(running_up.log_text[-20_000:])


@contextlib.asynccontextmanager
async def elastic_queue(
    deployment: Deployment, queue: str, **changes: object
) -> AsyncIterator[Watched]:
    async with clients(deployment.url, 1) as (mq,):
        await mq.create_queue(queue)
        await mq.set_scaling(queue, lively(**changes))
        yield Watched(mq, queue)


async def everything_came(load: Load, seen: Counter[int]) -> bool:
    """A sign that the queue is empty: all that was put is confirmed, and has been seen."""
    return load.is_settled and load.confirmed <= seen.keys()


async def test_replicas_come_with_the_load_and_go_with_it_and_every_message_is_accounted_for(
    deployment: Deployment,
) -> None:
    async with elastic_queue(deployment, "ramp") as queue, clients(deployment.url, 5) as many:
        await queue.has_replicas(1)
        seen: Counter[int] = Counter()
        load = Load(many[0], "ramp", per_s=10.0)
        consumers = [Consumer(mq, "ramp", 50.0, seen) for mq in many[1:]]
        async with running(load, *consumers):
            load.per_s = 300.0
            await queue.has_serving(at_least=2)
            up = await queue.decided(
                lambda one: (
                    any(isinstance(action, AddReplica) for action in one.actions)
                    and one.inputs.get("replicas", 1.0) >= 1.0
                ),
                "it is explained why a replica was added",
            )
            assert up.reason
            assert up.otherwise
            load.per_s = 5.0
            await queue.has_replicas(1)
            for kind in (Drain, Retire):
                await queue.decided(
                    lambda one, kind=kind: any(isinstance(each, kind) for each in one.actions),
                    f"{kind.__name__} is explained",
                )
            load.per_s = 0.0
            await eventually_async(lambda: everything_came(load, seen), "all that was put comes")
        assert load.confirmed == seen.keys()
        assert [consumer.unflagged for consumer in consumers] == [[]] * len(consumers)


async def test_a_person_says_how_many_and_the_law_decides_again_when_let(
    deployment: Deployment,
) -> None:
    async with elastic_queue(deployment, "manual") as queue:
        await queue.has_replicas(1)
        wanted = {"steering": ControlMode.MANUAL, "replicas_wanted": 3}
        await queue.mq.set_scaling("manual", lively(**wanted))
        await queue.has_replicas(3)
        await queue.mq.set_scaling("manual", lively())
        await queue.has_replicas(1)


async def test_recommend_only_makes_the_first_replica_and_then_only_says_what_it_would_do(
    deployment: Deployment,
) -> None:
    changes = {"steering": ControlMode.RECOMMEND}
    async with elastic_queue(deployment, "advice", **changes) as queue:
        await queue.has_replicas(1)
        for number in range(200):
            await queue.mq.put("advice", str(number).encode())
        advice = await queue.decided(
            lambda one: (
                not one.carried_out
                and any(isinstance(action, AddReplica) for action in one.actions)
            ),
            "a second replica is recommended",
        )
        assert "recommend-only" in advice.outcome
        assert await queue.serving() == [1]


def leader_id(deployment: Deployment) -> int:
    """The member that leads."""
    with psycopg.connect(deployment.store_url, autocommit=True) as connection:
        row = connection.execute("select member_id from leader").fetchone()
    assert row is not None
    return int(row[0])


async def leader_pid(deployment: Deployment, mq: Client) -> int:
    """The process of the member that leads."""
    address = {one.member_id: one.address for one in await mq.members()}[leader_id(deployment)]
    pid = deployment.node_pid(address)
    assert pid is not None
    return pid


async def test_the_next_leader_goes_on_when_the_first_is_killed(deployment: Deployment) -> None:
    async with elastic_queue(deployment, "heirs") as queue, clients(deployment.url, 3) as many:
        await queue.has_replicas(1)
        seen: Counter[int] = Counter()
        load = Load(many[0], "heirs", per_s=200.0)
        async with running(load, *(Consumer(mq, "heirs", 50.0, seen) for mq in many[1:])):
            await queue.has_serving(at_least=2)
            before = leader_id(deployment)
            os.kill(await leader_pid(deployment, queue.mq), signal.SIGKILL)

            async def another_leads() -> bool:
                return leader_id(deployment) != before

            await eventually_async(another_leads, "another node leads")
            load.per_s = 5.0
            await queue.has_replicas(1)
            load.per_s = 0.0
            await eventually_async(lambda: everything_came(load, seen), "all that was put comes")
        assert load.confirmed <= seen.keys()


async def test_a_leader_that_slept_wakes_up_and_follows(deployment: Deployment) -> None:
    async with elastic_queue(deployment, "sleeper") as queue:
        await queue.has_replicas(1)
        before, pid = leader_id(deployment), await leader_pid(deployment, queue.mq)
        os.kill(pid, signal.SIGSTOP)
        try:

            async def another_leads() -> bool:
                return leader_id(deployment) != before

            await eventually_async(another_leads, "another node leads while the first sleeps")
        finally:
            os.kill(pid, signal.SIGCONT)
        wanted = {"steering": ControlMode.MANUAL, "replicas_wanted": 2}
        await queue.mq.set_scaling("sleeper", lively(**wanted))
        topology = await queue.has_replicas(2)
        # Numbers are never given twice: two leaders at a time would have made more.
        assert [place.number for place in topology.replicas] == [1, 2]


async def test_with_every_replica_away_the_alias_keeps_and_hands_over(
    deployment: Deployment,
) -> None:
    wanted = {"steering": ControlMode.MANUAL, "replicas_wanted": 0, "min": 0}
    async with elastic_queue(deployment, "away", **wanted) as queue:
        for number in range(20):
            await queue.mq.put("away", str(number).encode())
        assert (await queue.topology()).replicas == []
        numbers = (await queue.mq.stats()).queue("away")
        assert numbers is not None
        assert numbers.waiting == 20
        seen: Counter[int] = Counter()
        await queue.mq.set_scaling("away", lively())
        consumer = Consumer(queue.mq, "away", 1000.0, seen)
        async with running(consumer):
            await eventually_async(lambda: len(seen) == 20, "what the alias kept comes")
        assert consumer.unflagged == [], "what came twice said so"


async def test_scaling_that_is_switched_off_leaves_a_plain_queue_with_everything_in_it(
    deployment: Deployment,
) -> None:
    async with elastic_queue(deployment, "plain") as queue:
        await queue.has_replicas(1)
        for number in range(20):
            await queue.mq.put("plain", str(number).encode())
        wanted = {"steering": ControlMode.MANUAL, "replicas_wanted": 0, "min": 0}
        await queue.mq.set_scaling("plain", lively(**wanted))
        await queue.has_replicas(0)
        await queue.mq.set_scaling("plain", None)
        assert not (await queue.mq.queue("plain")).elastic
        numbers = (await queue.mq.stats()).queue("plain")
        assert numbers is not None
        assert numbers.waiting == 20
        seen: Counter[int] = Counter()
        consumer = Consumer(queue.mq, "plain", 1000.0, seen)
        async with running(consumer):
            await eventually_async(lambda: len(seen) == 20, "what was put comes from the queue")
        assert consumer.unflagged == [], "what came twice said so"
