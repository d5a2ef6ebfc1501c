"""Figure 3: what one, two and four queues deliver together on one machine.

Each configuration runs on a fresh node with an empty store. Within a round all configurations run
in turn, so that a slow drift of the machine affects them equally; the result is the median over the
rounds. The paper asks whether queues may share a machine. They may if several queues together
deliver about as much as one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.child import Child
from tidegate.lab.bench.processors import Processors
from tidegate.lab.elastic.queues_process import Share, Window
from tidegate.lab.peers.server import temporary_folder
from tidegate.lab.peers.tidegate_server import tidegate_server
from tidegate.lab.replicated.disturbance import disturbance
from tidegate.lab.report.experiments import Progress
from tidegate.lab.report.figures import Line, Panel, draw_panels
from tidegate.lab.report.section import Drawing, Section
from tidegate.report.chart import Table

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


def queues_per_machine_section(plan: QueuesPlan, folder: Path, progress: Progress) -> Section:
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


def _measure(setup: tuple[str, str], count: int, plan: QueuesPlan) -> Window:
    persistence, connection = setup

    def drive(url: str | None, folder: Path) -> Window:
        share = Share(
            queues=count,
            durable=persistence == "persistent",
            warm_up_s=plan.warm_up_s,
            seconds=plan.seconds,
            url=url,
            folder=str(folder),
        )
        module = "tidegate.lab.elastic.queues_process"
        with Child(module, [msgspec.json.encode(share).decode()]) as child:
            return child.hear(Window, CHILD_TIMEOUT_S)

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
) -> Section:
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
    return Section(
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
            Table(
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
