"""Figure 3: what one, two and four queues deliver together on one machine.

Each configuration runs on a fresh node with an empty store. Within a round all configurations run
in turn, so that a slow drift of the machine affects them equally; the result is the median over the
rounds. The paper asks whether queues may share a machine. They may if several queues together
deliver about as much as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

import tidegate
from tidegate.broker.node import Node
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres.store import PostgresStore
from tidegate.testing.network import DOMAIN, InMemoryNetwork
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.papers.replicated.cluster import disturbance
from tidegate_lab.peers.servers import temporary_folder, tidegate_server
from tidegate_lab.report import Drawing, ExperimentSection, Progress

# Messages per second in the paper's figure 3 (JORAM on a small EC2 machine, 100 B).
PAPER: dict[tuple[str, str], dict[int, int]] = {
    ("persistent", "in-process"): {1: 25_309, 2: 25_052, 4: 22_318},
    ("persistent", "TCP"): {1: 13_862, 2: 13_456, 4: 13_338},
    ("transient", "in-process"): {1: 41_726, 2: 33_971, 4: 25_741},
    ("transient", "TCP"): {1: 19_669, 2: 16_828, 4: 28_450},
}
# "Up to 2 queues without significant performance decrease", in a persistent setup.
TOGETHER_MIN = 0.9
CHILD_TIMEOUT_S = 90.0


class QueuesPlan(msgspec.Struct, frozen=True):
    """The length and number of measurements."""

    counts: Sequence[int] = (1, 2, 4)
    warm_up_s: float = 1.0
    seconds: float = 3.0
    rounds: int = 1

    @staticmethod
    def quick() -> QueuesPlan:
        return QueuesPlan(counts=(1, 2), warm_up_s=0.2, seconds=0.5)

    @staticmethod
    def full() -> QueuesPlan:
        return QueuesPlan(seconds=10.0, rounds=3)


def queues_per_machine_section(
    plan: QueuesPlan, folder: Path, progress: Progress
) -> ExperimentSection:
    """Measure all configurations, and return the section about them."""
    rounds: dict[tuple[str, str], dict[int, list[float]]] = {
        setup: {count: [] for count in plan.counts} for setup in PAPER
    }
    processors = Processors()
    for _ in range(plan.rounds):
        for setup, found in rounds.items():
            for count in plan.counts:
                per_s = _measure(setup, count, plan).per_s
                found[count].append(per_s)
                progress(f"{count} × {', '.join(setup)}: {per_s:,.0f} msg/s")
    others = processors.share_of_others()
    medians = {
        setup: {count: statistics.median(values) for count, values in found.items()}
        for setup, found in rounds.items()
    }
    return _section(plan, medians, others, folder)


def _measure(setup: tuple[str, str], count: int, plan: QueuesPlan) -> AcknowledgedWindow:
    persistence, connection = setup

    def drive(url: str | None, folder: Path) -> AcknowledgedWindow:
        share = QueueShare(
            queues=count,
            durable=persistence == "persistent",
            warm_up_s=plan.warm_up_s,
            seconds=plan.seconds,
            url=url,
            folder=str(folder),
        )
        module = "tidegate_lab.papers.elastic.queues_per_machine"
        with Child(module, [msgspec.json.encode(share).decode()]) as child:
            return child.hear(AcknowledgedWindow, CHILD_TIMEOUT_S)

    if connection == "TCP":
        with tidegate_server() as server:
            return drive(f"tidegate://127.0.0.1:{server.port}", Path())
    with temporary_folder("local") as folder:
        return drive(None, folder / "data")


def _section(
    plan: QueuesPlan,
    medians: dict[tuple[str, str], dict[int, float]],
    others: float,
    folder: Path,
) -> ExperimentSection:
    counts = list(plan.counts)
    draw_panels(
        [
            Panel(
                persistence,
                "queues on the machine",
                "messages a second, all together",
                [
                    line
                    for connection, colour in (("in-process", "#1f6fb2"), ("TCP", "#e08a1e"))
                    for line in (
                        Line(
                            connection,
                            [float(count) for count in counts],
                            [medians[persistence, connection][count] for count in counts],
                            colour=colour,
                        ),
                        Line(
                            f"{connection}, the paper",
                            [float(count) for count in counts],
                            [float(PAPER[persistence, connection][count]) for count in counts],
                            dashed=True,
                            colour=colour,
                        ),
                    )
                ],
                x_names=[str(count) for count in counts],
            )
            for persistence in ("persistent", "transient")
        ],
        folder / "queues.png",
        height_in=4.0,
    )
    together = {
        setup: min(found[2], found[counts[-1]]) / found[1] for setup, found in medians.items()
    }
    worst = min(medians, key=lambda setup: together[setup])
    return ExperimentSection(
        name="queues",
        title="Queues that share a machine",
        source="Elastic queues §III-B, figure 3",
        paper=(
            "With persistent messages up to two queues share a machine without a significant "
            "decrease; transient ones lose up to 38 % with four."
        ),
        ours=(
            f"Two persistent queues move {_of_one(medians, 'in-process', 2):.2f} of what one "
            f"moves in-process and {_of_one(medians, 'TCP', 2):.2f} over TCP; the worst of all "
            f"({', '.join(worst)}) is {together[worst]:.2f}."
        ),
        drawings=[Drawing("queues.png", "All queues together; dashed: the paper's figures.")],
        tables=[
            ReportTable(
                "Messages a second of 100 B, put, confirmed, delivered and acknowledged; "
                "all queues together, the paper's in brackets",
                ["setup", *(f"{c} queue{'' if c == 1 else 's'}" for c in counts)],
                [
                    [
                        ", ".join(setup),
                        *(f"{found[count]:,.0f} ({PAPER[setup][count]:,})" for count in counts),
                    ]
                    for setup, found in medians.items()
                ],
            )
        ],
        bars=[
            Bar(
                f"two persistent queues, {connection}, of one",
                _of_one(medians, connection, 2),
                TOGETHER_MIN,
                "×",
            )
            for connection in ("in-process", "TCP")
        ],
        notes=[
            "In-process: the node lives in its clients' process and connections are made in "
            "memory; one Python process then does all the work, while over TCP node and clients "
            "have a core each.",
            *disturbance(others),
        ],
        data={
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "messages_per_s": {
                ", ".join(setup): {str(count): value for count, value in found.items()}
                for setup, found in medians.items()
            },
        },
    )


def _of_one(medians: dict[tuple[str, str], dict[int, float]], connection: str, count: int) -> float:
    found = medians["persistent", connection]
    return found[count] / found[1]


# Clients of several queues: `python -m tidegate_lab.papers.elastic.queues_per_machine <share as
# JSON>`.
#
# The process runs a producer and a consumer for each queue, as fast as possible, and counts the
# messages acknowledged within a window. Without a URL the node runs in this process too, and
# connections to it exist in memory only. A put and its answer then use no socket, as with JORAM's
# local connection factory.


PAYLOAD = bytes(100)
PUTS_IN_FLIGHT = 500
PREFETCH = 1000
HOST = "machine" + DOMAIN


class QueueShare(msgspec.Struct, frozen=True):
    """The task of the process."""

    queues: int
    durable: bool
    warm_up_s: float
    seconds: float
    # `None` runs the node in this process, with a database in `folder`.
    url: str | None
    folder: str


class AcknowledgedWindow(msgspec.Struct, frozen=True):
    """The number of acknowledged messages, and the length of the window."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


class LocalLoop(uvloop.Loop):
    """An event loop with an additional network inside the process."""

    def __init__(self) -> None:
        super().__init__()
        self.network = InMemoryNetwork(self)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.listen(protocol_factory, host, port or 0)
        return await super().create_server(protocol_factory, host, port, **options)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self.network.is_ours(host):
            return self.network.connect(protocol_factory, host, port)
        return await super().create_connection(protocol_factory, host, port, **options)


@contextlib.asynccontextmanager
async def _node(share: QueueShare) -> AsyncIterator[str]:
    if share.url is not None:
        yield share.url
        return
    with EmbeddedPostgres(Path(share.folder)) as database:
        node = Node(PostgresStore(database.url), host=HOST, port=0, name="local")
        await node.start()
        try:
            yield node.address
        finally:
            await node.stop()


class Traffic:
    """One queue with its producer and consumer."""

    def __init__(self, url: str, queue: str, *, durable: bool) -> None:
        self._url = url
        self._queue = queue
        self._durable = durable
        self.acknowledged = 0

    async def flow(self, ready: asyncio.Event) -> None:
        """Put and consume messages until cancelled."""
        async with (
            tidegate.connect(self._url) as producer,
            tidegate.connect(self._url) as consumer,
        ):
            await producer.create_queue(self._queue, durable=self._durable)
            async with (
                consumer.subscribe(self._queue, prefetch=PREFETCH) as subscription,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(PUTS_IN_FLIGHT):
                    tasks.create_task(self._put(producer))
                ready.set()
                async for batch in subscription.batches():
                    batch.ack()
                    self.acknowledged += len(batch)

    async def _put(self, producer: tidegate.Client) -> None:
        while True:
            await producer.put(self._queue, PAYLOAD)


async def work(share: QueueShare) -> AcknowledgedWindow:
    """Run all queues, and return the measured window."""
    async with _node(share) as url:
        traffics = [
            Traffic(url, f"queue-{number}", durable=share.durable) for number in range(share.queues)
        ]
        ready = [asyncio.Event() for _ in traffics]
        flows = [
            asyncio.create_task(traffic.flow(event))
            for traffic, event in zip(traffics, ready, strict=True)
        ]
        try:
            await _first(flows, asyncio.gather(*(event.wait() for event in ready)))
            await _first(flows, asyncio.sleep(share.warm_up_s))
            before, begun_s = sum(one.acknowledged for one in traffics), time.monotonic()
            await _first(flows, asyncio.sleep(share.seconds))
            after, ended_s = sum(one.acknowledged for one in traffics), time.monotonic()
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
        return AcknowledgedWindow(after - before, ended_s - begun_s)


async def _first(flows: list[asyncio.Task[None]], awaited: Any) -> None:
    """Wait for `awaited`; raise if one of the flows fails before."""
    waiting = asyncio.ensure_future(awaited)
    done, _ = await asyncio.wait([*flows, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LocalLoop) as runner:
        answer(runner.run(work(msgspec.json.decode(sys.argv[1], type=QueueShare))))
