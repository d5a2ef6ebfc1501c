"""A house with 500 queues, and a page that is scrolled through all of them."""

from __future__ import annotations

import asyncio

from house_in_thread import HouseInThread

from tidegate.client.client import Client

QUEUES = 500

# From the top to the bottom in three seconds, over some updates; the latest frame of them, in ms.
SCROLLED = """() => new Promise(done => {
  const begun = performance.now(); let before = begun, worst = 0;
  const step = now => {
    worst = Math.max(worst, now - before); before = now;
    const part = Math.min(1, (now - begun) / 3000);
    scrollTo(0, part * (document.documentElement.scrollHeight - innerHeight));
    if (part < 1) requestAnimationFrame(step);
    else setTimeout(() => done(worst), 300);
  };
  requestAnimationFrame(step);
})"""


def make_queues(house: HouseInThread) -> None:
    async def make() -> None:
        async with Client(house.url) as mq:
            names = [f"queue-{number:03}" for number in range(QUEUES)]
            await asyncio.gather(*(mq.create_queue(name, durable=False) for name in names))

    house.do(make())
