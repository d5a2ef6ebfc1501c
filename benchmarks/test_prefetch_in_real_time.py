"""Prefetch loops and tuning by the real clock: what `tests/` shows in virtual time."""

from __future__ import annotations

import asyncio
import time
from statistics import fmean

import pytest
from backing import Connect
from figures import Figure
from rabbitmq import VirtualHost

import tidegate
from tidegate.broker.node import Node
from tidegate.client.app import App
from tidegate.client.prefetch import PrefetchStep
from tidegate.engines.probe import PacedHandler
from tidegate.tuning import EXCITED_SAMPLES_MIN, ExperimentOrigin, TuningGoal
from tidegate.tuning.experiment import TuningRefused, tune
from tidegate.tuning.result import user_worker
from tidegate_lab.faults.proxy import TcpProxy

# A handler of 20 ms makes a unit of prefetch worth 50 messages a second, as a network would.
HANDLER_S = 0.02
TARGET_PER_S = 150.0
GOAL = tidegate.PrefetchGoal(
    rate_per_s=TARGET_PER_S,
    settle_s=5.0,
    sample_s=0.25,
    model=tidegate.PrefetchModel(a=0.0, b=50.0, sample_s=0.25),
    low=1,
    high=40,
)
MEASURED = 16
# 40 ms there and back, 5 ms of work: 22 msg/s a unit, and 200 is the most.
WISH = TuningGoal(
    target_per_s=100.0, settle_s=8.0, high=24, sample_s=0.2, excited_samples=EXCITED_SAMPLES_MIN
)


async def steered(url: str, figure: Figure, engine: str) -> None:
    app = tidegate.App(url)
    steps: list[PrefetchStep] = []
    app.on_prefetch_step(steps.append)

    @app.worker("orders", concurrency=40, prefetch=GOAL)
    async def ship(order: bytes) -> None:
        await asyncio.sleep(HANDLER_S)

    async with app.running(), tidegate.connect(url) as mq:
        await mq.put_many("orders", [b"order"] * 4_000)
        await asyncio.sleep(2 * GOAL.settle_s)
    rates = [step.sample.arrived_per_s for step in steps if step.sample]
    figure(
        f"steered to {TARGET_PER_S:g} msg/s on {engine}: rate after two settling times",
        fmean(rates[-MEASURED:]),
        "msg/s",
        "within 5 %",
    )
    near = [abs(rate - TARGET_PER_S) <= 0.1 * TARGET_PER_S for rate in rates]
    settled = next((n for n, is_near in enumerate(near) if is_near), len(near))
    figure(f"first sample within 10 % on {engine}", settled * GOAL.sample_s, "s", "5 s at most")


async def test_a_steered_worker_on_rabbitmq(rabbitmq: VirtualHost, figure: Figure) -> None:
    await steered(rabbitmq.url, figure, "RabbitMQ")


@pytest.mark.parametrize("backing", ["memory"], indirect=True)
async def test_a_steered_worker_on_a_node(node: Node, connect: Connect, figure: Figure) -> None:
    await steered(node.address, figure, "a node")


async def test_a_worker_on_rabbitmq_is_modelled(rabbitmq: VirtualHost, figure: Figure) -> None:
    handler = PacedHandler(0.005)
    app = App(rabbitmq.url)

    @app.worker("orders", concurrency=100)
    async def ship(order: bytes) -> None:
        await handler.turn()

    async with tidegate.connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=0.02) as cable:
        await mq.create_queue("orders")
        await mq.put_many("orders", [bytes(64)] * 10_000)
        async with user_worker(app, cable.url, "orders") as consumer:
            origin = ExperimentOrigin("rabbitmq", "orders", made_at=1.0)
            try:
                model = (await tune(consumer, WISH, lambda *_: None, origin)).model
            except TuningRefused:
                figure("tuned on RabbitMQ: explained of held-out data", 0.0, "", "0.8 at least")
                return
    figure("tuned on RabbitMQ: explained of held-out data", model.r2_test, "", "0.8 at least")
    figure("tuned on RabbitMQ: worth of a prefetch", model.worth_per_s, "msg/s", "12 to 30")


async def test_an_outage_of_rabbitmq_costs_next_to_nothing(
    rabbitmq: VirtualHost, figure: Figure
) -> None:
    async with TcpProxy(rabbitmq.url) as cable, tidegate.connect(cable.url) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"x")
        cable.set_mode("frozen")
        cable.cut()
        working_s = time.process_time()
        await asyncio.sleep(2.0)
        working_s = time.process_time() - working_s
        cable.set_mode("passes")
        await mq.put("orders", b"x")
    figure("processor time in an outage of 2 s", working_s, "s", "0.5 s at most")
