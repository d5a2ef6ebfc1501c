"""Prefetch that a real node steers, as somebody sets it up and looks at it from a terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from command_line import Script
from served_node import ServedNode
from waiting import eventually_async

import tidegate
from tidegate.core.prefetch import PrefetchModel


def test_a_goal_is_set_shown_changed_and_taken_away(
    script: Script, queue: str, tmp_path: Path
) -> None:
    model = tmp_path / "orders.json"
    PrefetchModel(a=0.2, b=60.0).save(model)
    made = script("create", queue, "--prefetch-rate", "400/s", "--settle", "20s")
    assert made.returncode == 0, made.stderr
    shown = script.json("policy", queue)["prefetch"]
    assert (shown["rate_per_s"], shown["settle_s"]) == (400.0, 20.0)
    changed = script("queue", "set", queue, "--prefetch-keep-up", "--overshoot", "2%")
    assert b"keep-up by PI, settles in 20s, overshoot 2 %" in changed.stdout
    by_hand = script.json("policy", queue, "--prefetch-manual", "12")["prefetch"]
    assert (by_hand["manual"], by_hand["overshoot"]) == (12, 0.02)
    automatic = script.json("policy", queue, "--prefetch-auto", "--prefetch-model", str(model))
    assert "manual" not in automatic["prefetch"]
    assert automatic["prefetch"]["model"] == {"a": 0.2, "b": 60.0}
    listed = [one for one in script.json("queues") if one["queue"] == queue]
    assert "own model" in listed[0]["prefetch_goal"]
    assert script.json("policy", queue, "--prefetch-off")["prefetch"] is None
    PrefetchModel(a=0.2, b=60.0, queue="refunds").save(model)
    doubted = script("policy", queue, "--prefetch-keep-up", "--prefetch-model", str(model))
    assert f"on queue refunds, and is used for {queue}".encode() in doubted.stderr
    assert doubted.returncode == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--prefetch-rate", "400"], b"such as 400/s"),
        (["--prefetch-rate", "0/s"], b"above 0"),
        (["--prefetch-rate", "4/s", "--settle", "2s"], b"at least 4 samples"),
        (["--prefetch-rate", "4/s", "--overshoot", "much"], b"such as 5%"),
        (
            ["--prefetch-rate", "4/s", "--overshoot", "500%"],
            b"an overshoot of 500 %: say 0 to 50 %",
        ),
        (["--prefetch-rate", "4/s", "--prefetch-keep-up"], b"one of them"),
        (["--prefetch-manual", "0"], b"1 to"),
        (["--settle", "20s"], b"--prefetch-keep-up"),
        (["--prefetch-off", "--settle", "20s"], b"leave them out"),
        (["--prefetch-keep-up", "--prefetch-model", "/nonesuch"], b"/nonesuch"),
        (["--set", "prefetch=soon"], b"400/s"),
    ],
)
def test_a_bad_goal_says_what_is_allowed(
    script: Script, queue: str, options: list[str], complaint: bytes
) -> None:
    script("create", queue)
    refused = script("policy", queue, *options)
    assert (refused.returncode, complaint in refused.stderr) == (2, True), refused.stderr


async def test_steps_are_explained_live_from_the_node_that_steers(
    script: Script, served: ServedNode, queue: str
) -> None:
    async with tidegate.connect(served.url) as mq:
        goal = tidegate.PrefetchGoal(rate_per_s=50.0, sample_s=0.1, settle_s=2.0)
        await mq.create_queue(queue, durable=False, policy=tidegate.QueuePolicy(prefetch=goal))
        # More than is handled while the test runs, however slow the machine is.
        await mq.put_many(queue, [b"x"] * 20_000)
        async with mq.subscribe(queue, prefetch=3) as subscription:
            steered = asyncio.create_task(_consume(subscription))

            async def is_steered() -> bool:
                numbers = (await mq.stats(queue)).queue(queue)
                assert numbers is not None
                [one] = numbers.consumers
                return bool(one.control) and one.control[-1].mode == "automatic"

            async def decided() -> list[dict[str, Any]]:
                found = await asyncio.to_thread(script.json, "explain", queue)
                return [one for one in found if one["loop"] == "prefetch"]

            await eventually_async(is_steered)
            [shown] = await asyncio.to_thread(script.json, "explain", queue, "--prefetch")
            printed = await asyncio.to_thread(script, "explain", queue, "--prefetch", "-n", "2")
            looked = await asyncio.to_thread(script, "status", "--queue", queue)
            assert await eventually_async(decided)
            steered.cancel()
    assert (shown["queue"], shown["client"]) == (queue, mq.client_name)
    step = next(step for step in shown["steps"] if step["mode"] == "automatic")
    assert step["target_per_s"] == 50.0
    assert step["error_per_s"] == pytest.approx(50.0 - step["used_per_s"])
    assert b"target/s\trate/s\terror/s\tP\tI\tD\twanted\tlevel\tset" in printed.stdout
    assert b"50/s by PI" in looked.stdout
    nobody = await asyncio.to_thread(script, "explain", queue, "--prefetch")
    assert b"nobody consumes" in nobody.stdout


async def _consume(subscription: tidegate.Subscription) -> None:
    async for message in subscription:
        await asyncio.sleep(0.02)  # the handler's work: the rate is what is steered
        message.ack()


def test_explain_prefetch_without_a_goal_names_the_option(script: Script, queue: str) -> None:
    script("create", queue)
    assert b"--prefetch-rate" in script("explain", queue, "--prefetch").stdout
    assert script("explain", "--prefetch").returncode == 2
