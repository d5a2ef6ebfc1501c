"""The elastic queue on a real RabbitMQ: shares are followed, replicas come and go, nothing is lost
and nothing comes twice without saying so."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from urllib.parse import quote

import aio_pika
import pytest
from msgspec.structs import replace
from rabbitmq import VirtualHost
from rabbitmq_steerer import QUEUE, Steerer, is_settled, management_of, wanted
from rabbitmq_traffic import Traffic, consuming
from waiting import eventually_async

import tidegate
from tidegate.client.client import Client
from tidegate.control.journal import Journal
from tidegate.control.queues.rabbitmq import RabbitmqController
from tidegate.core.decisions import Decision, Exchange, Migrate, Retire, SetShares
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import CRASH_VARIABLE
from tidegate.core.topology import MemberRole, Range, ReplicaState, Scaling
from tidegate.engines.rabbitmq import actuator
from tidegate.engines.rabbitmq.actuator import move_messages
from tidegate.engines.rabbitmq.client import parse_address
from tidegate.engines.rabbitmq.sensor import RabbitmqSample
from tidegate.engines.rabbitmq.topology import (
    FEED_EXCHANGE,
    ControllerConnection,
    ElasticTopology,
    write_topology,
)

KINDS = ["classic", "quorum"]


class Unwritten:
    """A journal that nobody reads."""

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None:
        pass


@pytest.fixture
async def mq(rabbitmq: VirtualHost) -> AsyncIterator[Client]:
    async with tidegate.connect(rabbitmq.url) as client:
        await client.create_queue(QUEUE)
        yield client


async def length(steerer: Steerer, name: str) -> int:
    found = await steerer.link.length(name)
    assert found is not None, f"there is no queue {name}"
    return found.ready


def within_chance(count: int, share: float, total: int) -> bool:
    """Five standard deviations: one run in some millions is farther off."""
    return abs(count - share * total) <= 5.0 * math.sqrt(total * share * (1.0 - share))


def numbers(topology: ElasticTopology) -> list[int]:
    return [one.number for one in topology.replicas]


# Shares


async def test_puts_are_dealt_by_the_shares(rabbitmq: VirtualHost, mq: Client) -> None:
    async with Steerer(rabbitmq.url, wanted(3)) as steerer:
        await steerer.settle(3)
        shares = {1: 0.6, 2: 0.3, 3: 0.1}
        assert await steerer.actuator.execute(SetShares(shares)) is None

        total = 1000
        await mq.put_many(QUEUE, [b"x"] * total)

        counts = {number: await length(steerer, f"{QUEUE}#{number}") for number in shares}
        assert sum(counts.values()) == total
        assert all(within_chance(counts[one], share, total) for one, share in shares.items()), (
            counts
        )


async def test_a_group_goes_to_one_replica_while_shares_stay(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(3)) as steerer:
        await steerer.settle(3)

        for _ in range(30):
            await mq.put(QUEUE, b"x", group="customer 7")

        counts = [await length(steerer, f"{QUEUE}#{number}") for number in (1, 2, 3)]
        assert sorted(counts) == [0, 0, 30]


async def test_foreign_messages_to_exchange_and_plain_queue_are_consumed(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    traffic = Traffic()
    async with Steerer(rabbitmq.url, wanted(2)) as steerer, consuming(rabbitmq.url, traffic, "a"):
        await steerer.settle(2)

        async with await aio_pika.connect(rabbitmq.url) as foreign:
            channel = await foreign.channel()
            exchange = await channel.get_exchange(QUEUE)
            for seq in range(20):
                where = exchange if seq % 2 else channel.default_exchange
                message = aio_pika.Message(f"message {seq}".encode())
                await where.publish(message, f"key {seq}" if seq % 2 else QUEUE)
        traffic.put = 20
        await traffic.all_delivered()


async def test_while_no_replica_has_a_share_the_queue_itself_keeps_what_is_put(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(1)) as steerer:
        await steerer.settle(1)
        await steerer.actuator.execute(SetShares({1: 0.0}))

        await mq.put(QUEUE, b"x")

        assert await length(steerer, QUEUE) == 1
        assert await length(steerer, f"{QUEUE}#1") == 0


# Coming and going


@pytest.mark.parametrize(("kind", "wishes"), [("classic", (3, 1, 4, 2)), ("quorum", (3, 1))])
async def test_replicas_come_and_go_under_load_and_nothing_is_lost_or_twice_unflagged(
    rabbitmq: VirtualHost, kind: str, wishes: tuple[int, ...]
) -> None:
    traffic = Traffic()
    url = f"{rabbitmq.url}?queue_type={kind}"
    async with (
        tidegate.connect(url) as mq,
        Steerer(url, wanted(1), management=management_of(rabbitmq)) as steerer,
    ):
        await steerer.settle(1)
        async with consuming(url, traffic, "a", "b", handler_s=0.002):
            for replicas in wishes:
                steerer.scale(replicas)
                producing = asyncio.create_task(traffic.produce(mq, 100))
                await steerer.settle(replicas)
                await producing
            await traffic.all_delivered()

        verdict = traffic.verdict()
        assert (verdict.outcome, verdict.delivered) == ("pass", 100 * len(wishes)), str(verdict)
        came = sum(max(after - before, 0) for before, after in pairwise((0, 1, *wishes)))
        assert steerer.topology.next_number == came + 1  # each had a number of its own


async def test_load_brings_replicas_and_its_end_takes_them(rabbitmq: VirtualHost) -> None:
    scaling = Scaling(
        replicas=Range(1, 3),
        min_load=2.0,
        max_load=20.0,
        cooldown_period_s=0.2,
        inhibition_s=0.1,
        polling_interval_s=0.1,
    )
    traffic = Traffic()
    async with (
        tidegate.connect(rabbitmq.url) as mq,
        Steerer(rabbitmq.url, scaling) as steerer,
    ):
        await steerer.settle(1)

        await traffic.produce(mq, 200)
        await steerer.until(lambda topology: len(topology.replicas) == 3)
        async with consuming(rabbitmq.url, traffic, "a"):
            await traffic.all_delivered()
            await steerer.until(lambda topology: is_settled(topology, 1))

        assert "avg_load > max_load" in {decision.rule for decision in steerer.decisions}
        assert traffic.verdict().outcome == "pass"


async def test_a_message_that_comes_at_the_last_moment_keeps_the_replica(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(2)) as steerer:
        await steerer.settle(2)
        steerer.scale(1)
        await steerer.until(lambda topology: any(one.is_leaving for one in topology.replicas))
        leaving = next(one.number for one in steerer.topology.replicas if one.is_leaving)
        name = f"{QUEUE}#{leaving}"
        async with await aio_pika.connect(rabbitmq.url) as foreign:
            exchange = (await foreign.channel()).default_exchange
            await exchange.publish(aio_pika.Message(b"message 0"), name)

        refusal = await steerer.actuator.execute(Retire(leaving))

        assert refusal is not None
        assert "1 messages are still in replica" in refusal
        with pytest.raises(tidegate.InvalidValue, match="not empty"):
            await steerer.link.delete_queue(name)
        traffic = Traffic()
        traffic.put = 1
        async with consuming(rabbitmq.url, traffic, "a"):
            await steerer.settle(1)
            await traffic.all_delivered()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replica_stays_while_a_consumer_holds_a_message_of_it(
    rabbitmq: VirtualHost, kind: str
) -> None:
    url = f"{rabbitmq.url}?queue_type={kind}"
    async with tidegate.connect(url) as mq, Steerer(url, wanted(2)) as steerer:
        await steerer.settle(2)
        await steerer.actuator.execute(SetShares({1: 0.0, 2: 1.0}))
        async with mq.subscribe(QUEUE, prefetch=5) as orders:
            await mq.put(QUEUE, b"held")
            message = await anext(aiter(orders))
            steerer.scale(1)
            await steerer.until(lambda topology: any(one.is_leaving for one in topology.replicas))
            for _ in range(5):
                await steerer.period()
            assert numbers(steerer.topology) == [1, 2]

            message.ack()
            await steerer.settle(1)
        assert numbers(steerer.topology) == [1]


async def test_a_removal_that_is_cancelled_brings_consumers_back(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    traffic = Traffic()
    async with Steerer(rabbitmq.url, wanted(2)) as steerer, consuming(rabbitmq.url, traffic, "a"):
        await steerer.settle(2)
        steerer.scale(1)
        await steerer.until(lambda topology: any(one.is_leaving for one in topology.replicas))

        steerer.scale(2)
        await steerer.settle(2)
        await steerer.actuator.execute(SetShares({1: 0.0, 2: 1.0}))
        await traffic.produce(mq, 10)
        await traffic.all_delivered()


async def test_a_replica_that_somebody_deleted_is_forgotten_and_the_others_go_on(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    traffic = Traffic()
    async with Steerer(rabbitmq.url, wanted(2)) as steerer, consuming(rabbitmq.url, traffic, "a"):
        await steerer.settle(2)

        await steerer.link.delete_queue(f"{QUEUE}#2", conditions=False)
        await steerer.settle(2)

        assert numbers(steerer.topology) == [1, 3]
        await traffic.produce(mq, 20)
        await traffic.all_delivered()


async def test_a_worker_that_came_with_a_replica_serves_that_one_only(
    rabbitmq: VirtualHost, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_REPLICA", f"{QUEUE}#2")
    traffic = Traffic()
    async with Steerer(rabbitmq.url, wanted(2)) as steerer, consuming(rabbitmq.url, traffic, "a"):
        # Whoever is attended has all the share, and what was in the queue itself is brought there.
        await mq.put(QUEUE, b"message 0")
        traffic.put = 1
        await steerer.until(lambda topology: topology.shares == {1: 0.0, 2: 1.0})
        for _ in range(3):
            await steerer.period()
        await traffic.produce(mq, 20)
        await traffic.all_delivered()

        first, second, itself = [
            await steerer.link.length(name) for name in (f"{QUEUE}#1", f"{QUEUE}#2", QUEUE)
        ]
        assert (first, second, itself) == ((0, 0), (0, 1), (0, 0))


async def test_prefetch_holds_over_all_replicas(rabbitmq: VirtualHost, mq: Client) -> None:
    async with Steerer(rabbitmq.url, wanted(3)) as steerer:
        await steerer.settle(3)
        await mq.put_many(QUEUE, [b"x"] * 60)
        async with mq.subscribe(QUEUE, prefetch=7) as orders:
            taken = [message async for message, _ in _so_many(orders, 7)]
            waiting = sum([await length(steerer, f"{QUEUE}#{one}") for one in (1, 2, 3)])
            assert (len(taken), waiting) == (7, 53)


async def _so_many(orders: object, count: int) -> AsyncIterator[tuple[object, int]]:
    messages = aiter(orders)  # type: ignore[call-overload]
    for index in range(count):
        yield await anext(messages), index


async def test_calls_about_the_queue_are_about_all_of_it(rabbitmq: VirtualHost, mq: Client) -> None:
    async with Steerer(rabbitmq.url, wanted(2)) as steerer:
        await steerer.settle(2)
        await mq.put_many(QUEUE, [b"x"] * 20)

        assert (await mq.queue(QUEUE)).messages == 20
        assert (await mq.get(QUEUE)).payload == b"x"
        assert await mq.purge(QUEUE) == 19
        with pytest.raises(tidegate.InvalidValue, match="--off"):
            await mq.delete_queue(QUEUE)


# Ending it


async def test_off_makes_it_a_plain_queue_again_with_everything_that_waited(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    traffic = Traffic()
    async with Steerer(rabbitmq.url, wanted(3)) as steerer:
        await steerer.settle(3)
        await traffic.produce(mq, 60)
        steerer.scale(0)
        await steerer.settle(0)
        await steerer.actuator.make_plain()
    await traffic.produce(mq, 10)

    assert [name for name in rabbitmq.queues() if name.startswith(QUEUE)] == [QUEUE]
    async with consuming(rabbitmq.url, traffic, "a"):
        await traffic.all_delivered()
    assert traffic.verdict().outcome == "pass"


# Stopped in the middle

STEPS = {
    "after-replica-noted": "--to 2",
    "after-serving": "--to 2",
    "after-unbind": "--to 2",
    "after-drain": "--to 0",
    "before-move": "--to 0",
    "after-let-go": "--to 0",
    "before-retire": "--to 0",
    "after-replica-ended": "--to 0",
}


@pytest.mark.parametrize(("step", "order"), STEPS.items())
async def test_a_steerer_killed_at_any_step_leaves_what_the_next_one_ends(
    rabbitmq: VirtualHost, mq: Client, step: str, order: str
) -> None:
    traffic = Traffic()
    if order == "--to 0":
        async with Steerer(rabbitmq.url, wanted(2)) as before:
            await before.settle(2)
    await traffic.produce(mq, 40)

    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "steer", rabbitmq.url, "--queue", QUEUE),
        *("--replicas", "0..4", *order.split(), "--management", "none"),
        *("--set", "polling_interval=100ms", "--set", "step_max=4"),
        env={**os.environ, CRASH_VARIABLE: step},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await killed.communicate()
    assert killed.returncode == -9, said.decode()

    await traffic.produce(mq, 20)
    async with Steerer(rabbitmq.url, wanted(3)) as steerer:
        await steerer.settle(3)
        async with consuming(rabbitmq.url, traffic, "a"):
            await traffic.produce(mq, 20)
            await traffic.all_delivered()
            steerer.scale(0)
            await steerer.settle(0)
            await steerer.actuator.make_plain()
        verdict = traffic.verdict()
        assert verdict.outcome == "pass", str(verdict)
    assert [name for name in rabbitmq.queues() if name.startswith(QUEUE)] == [QUEUE]


async def test_second_controller_takes_over_when_the_first_ends(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(1)) as first:
        await first.settle(1)
        second = Steerer(rabbitmq.url, wanted(2))
        await second.link.open()
        assert not await second.link.has_lock(QUEUE)
        waiting = asyncio.create_task(second.__aenter__())

    await waiting
    await second.settle(2)
    assert numbers(second.topology) == [1, 2]
    await second.link.close()


def closed(host: VirtualHost, name: str) -> int:
    """Cut the connections of this name; how many the management API knew of."""
    found = [
        one["name"]
        for one in host.call("GET", f"vhosts/{host.name}/connections")
        if one.get("client_properties", {}).get("connection_name") == name
    ]
    for one in found:
        host.call("DELETE", f"connections/{quote(one, safe='')}", missing_ok=True)
    return len(found)


@pytest.mark.parametrize("once", [False, True])
async def test_controller_retries_after_a_connection_lost_at_its_start(
    rabbitmq: VirtualHost, mq: Client, once: bool
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    steering = RabbitmqController(
        parse_address(rabbitmq.url, name="waiter"),
        QUEUE,
        wanted(1),
        None,
        Journal(Unwritten(), None, time.time),
        say=said.put_nowait,
        seen=lambda *_: None,
    )
    async with ControllerConnection(parse_address(rabbitmq.url)) as other:
        assert await other.has_lock(QUEUE)
        running = asyncio.create_task(steering.run(once=once))
        assert "somebody else steers" in await said.get()
        while not await asyncio.to_thread(closed, rabbitmq, "waiter"):
            pass
        if once:
            with pytest.raises(Unavailable, match="run it again when RabbitMQ is well"):
                await running
            return
        words = await said.get()
        assert words.endswith("; trying again")
        assert " at 0x" not in words
    assert await said.get() == "steering orders: 0 replicas now"
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_steerer_whose_connection_is_cut_takes_over_again_and_nothing_is_lost(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    settled = asyncio.Event()

    def seen(topology: ElasticTopology, look: RabbitmqSample, decision: Decision) -> None:
        if is_settled(topology, 2):
            settled.set()

    steering = RabbitmqController(
        parse_address(rabbitmq.url),
        QUEUE,
        replace(wanted(2), polling_interval_s=0.1),
        management_of(rabbitmq),
        Journal(Unwritten(), None, time.time),
        say=said.put_nowait,
        seen=seen,
    )
    running = asyncio.create_task(steering.run())
    assert await said.get() == "steering orders: 0 replicas now"
    await settled.wait()
    traffic = Traffic()
    async with consuming(rabbitmq.url, traffic, "a"):
        producing = asyncio.create_task(traffic.produce(mq, 100))
        # The management API knows of a connection a while after it was made: until it was the one.
        while said.empty():
            await asyncio.to_thread(rabbitmq.close_connections)
        while (words := await said.get()).endswith("; trying again"):
            assert " at 0x" not in words
        assert words == "steering orders: 2 replicas now"
        await producing
        await traffic.all_delivered()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    verdict = traffic.verdict()
    assert verdict.outcome == "pass", str(verdict)


# What cannot be measured or done


async def test_without_the_management_api_lengths_and_consumers_are_known_and_the_rest_is_said(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(1)) as steerer:
        await steerer.settle(1)
        await mq.put_many(QUEUE, [b"x"] * 30)

        decision = await steerer.period()

        assert decision.inputs["waiting"] == 30.0
        assert not {"arrived_per_s", "consumed_per_s", "oldest_age_s"} & decision.inputs.keys()
        assert "Not measured: arrived_per_s" in decision.reason


async def test_rates_come_from_the_management_api(rabbitmq: VirtualHost, mq: Client) -> None:
    traffic = Traffic()
    management = management_of(rabbitmq)
    async with (
        Steerer(rabbitmq.url, wanted(1), management=management) as steerer,
        consuming(rabbitmq.url, traffic, "a"),
    ):
        await steerer.settle(1)
        # For as long as it takes: statistics come when they come.
        putting = asyncio.create_task(traffic.produce(mq, 1_000_000))
        rates = ("arrived_per_s", "consumed_per_s")
        await steerer.until(
            lambda _: all(steerer.decisions[-1].inputs.get(rate, 0.0) > 0.0 for rate in rates)
        )
        putting.cancel()


async def test_clients_are_not_sent_over_and_it_says_why(rabbitmq: VirtualHost, mq: Client) -> None:
    async with Steerer(rabbitmq.url, wanted(2)) as steerer:
        await steerer.settle(2)

        refusal = await steerer.actuator.execute(Migrate(MemberRole.CONSUMER, 1, 2))
        gone = await steerer.actuator.execute(Exchange(1, 7, 10))

        assert refusal == "on RabbitMQ consumers are at every replica already, or belong to one"
        assert gone == "replica 7 is gone"


async def test_an_exchange_of_that_name_that_is_not_ours_is_left_alone(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with await aio_pika.connect(rabbitmq.url) as foreign:
        await (await foreign.channel()).declare_exchange(QUEUE, "direct", durable=True)

    with pytest.raises(tidegate.InvalidValue, match="it is no alias of ours"):
        async with Steerer(rabbitmq.url, wanted(1)):
            pass


async def test_a_broker_without_the_plugin_is_told_which_one(
    rabbitmq: VirtualHost, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To this broker an exchange type is as unknown as ours is to one without the plugin.
    monkeypatch.setattr(actuator, "HASH", "x-no-such-hash")

    with pytest.raises(
        tidegate.InvalidValue, match="rabbitmq-plugins enable rabbitmq_consistent_hash_exchange"
    ):
        async with Steerer(rabbitmq.url, wanted(1)):
            pass


async def test_a_user_without_permission_hears_which_is_missing(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    url = rabbitmq.user(configure=f"^{QUEUE}.*", write=f"^{QUEUE}.*", read=f"^{QUEUE}.*")

    with pytest.raises(tidegate.Forbidden, match=re.escape(FEED_EXCHANGE)):
        async with Steerer(url, wanted(1)):
            pass


async def test_client_without_configure_permission_puts_and_consumes(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(2)) as steerer:
        await steerer.settle(2)
        traffic = Traffic()
        url = rabbitmq.user(write=".*", read=".*")
        async with tidegate.connect(url) as limited, consuming(url, traffic, "a"):
            await traffic.produce(limited, 20)
            await traffic.all_delivered()


async def test_a_draining_replica_has_no_binding_left(rabbitmq: VirtualHost, mq: Client) -> None:
    async with Steerer(rabbitmq.url, wanted(2)) as steerer, mq.subscribe(QUEUE) as orders:
        await steerer.settle(2)
        steerer.scale(1)
        await steerer.until(
            lambda topology: any(
                one.state is ReplicaState.DRAINING and not one.weight for one in topology.replicas
            )
        )
        bindings = rabbitmq.call("GET", f"exchanges/{rabbitmq.name}/{QUEUE}/bindings/source")
        assert [(one["destination"], one["routing_key"]) for one in bindings] == [
            (f"{QUEUE}#1", "100")
        ]
        assert orders.held == 0


async def test_message_refused_by_a_full_replica_returns_to_its_source(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    await mq.put_many(QUEUE, [b"x"] * 30)
    async with Steerer(rabbitmq.url, wanted(1)) as steerer:
        narrow = {"x-max-length": 10, "x-overflow": "reject-publish"}
        await steerer.link.declare_queue(f"{QUEUE}#full", narrow)
        channel = await steerer.link.channel()
        with pytest.raises(tidegate.LimitReached, match="full"):
            await move_messages(channel, QUEUE, f"{QUEUE}#full", 30, 5.0)

        async def are_back() -> bool:
            return await length(steerer, QUEUE) == 20

        await eventually_async(are_back)
        assert await length(steerer, f"{QUEUE}#full") == 10


async def test_controller_restarts_a_queue_whose_removal_was_interrupted(
    rabbitmq: VirtualHost, mq: Client
) -> None:
    async with Steerer(rabbitmq.url, wanted(0)) as steerer:
        # Killed in the middle of `--off`: the ledger says that it is over, and is there.
        over = replace(steerer.actuator.topology, is_over=True)
        await write_topology(await steerer.link.channel(), over)

    async with Steerer(rabbitmq.url, wanted(1)) as steerer:
        await steerer.settle(1)
        assert not steerer.actuator.topology.is_over
        await mq.put_many(QUEUE, [b"x"] * 10)
        assert await length(steerer, f"{QUEUE}#1") == 10
