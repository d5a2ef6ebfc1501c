"""Figure 4: whether a queue slows down when many messages wait in it.

The paper puts 1,500 messages, reads them, and sees the speed fall. We do the same, and repeat it on
a queue with a large backlog. Two queues on one node, one empty and one with the backlog, are
measured in turn, so that disturbances by other processes affect both.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.core.topology import MemberRole
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import Scale, disturbance, series_of
from tidegate_lab.papers.replicated.crew import (
    ClientGroup,
    ClientSpec,
    QueueTotalsRow,
    client_group,
    make_payload,
)
from tidegate_lab.peers.servers import tidegate_server
from tidegate_lab.report import Drawing, ExperimentFailed, ExperimentSection, Progress

WITHIN = 0.8
FILL_AT_ONCE = 1000
PROBE_EVERY_S = 0.1
SECONDS_MAX = 120.0
# The producer number of the backlog, which no client has.
FILLING = 0xFFFF_FFFF
EMPTY, FULL = "empty", "full"


class WaitingSpeed(msgspec.Struct, frozen=True):
    """The rates at which messages were put and read, with this backlog."""

    waiting: int
    put_per_s: float
    read_per_s: float


class BacklogPair(msgspec.Struct, frozen=True):
    """A measurement of the empty queue and one of the full queue, taken in turn."""

    empty: WaitingSpeed
    full: WaitingSpeed


class _Measured:
    """A queue, its clients, and the size of its backlog."""

    def __init__(self, crew: ClientGroup, control: BlockingClient, url: str, queue: str) -> None:
        self._crew = crew
        self._control = control
        self._url = url
        self._queue = queue
        self._numbers = itertools.count()
        self.waiting = 0

    def fill_to(self, count: int) -> None:
        for first in range(self.waiting, count, FILL_AT_ONCE):
            sequences = range(first, min(first + FILL_AT_ONCE, count))
            self._control.put_many(self._queue, [make_payload(FILLING, n) for n in sequences])
        self.waiting = count

    def speed(self, messages: int) -> tuple[WaitingSpeed, list[QueueTotalsRow]]:
        """Put messages, then read as many; return the speeds and the samples."""
        self._crew.begin()
        put_s = self._work(MemberRole.PRODUCER, messages)
        read_s = self._work(MemberRole.CONSUMER, messages)
        rows = list(self._crew.rows)
        held = sum(one.waiting + one.unacknowledged for one in self._crew.replicas())
        if held != self.waiting:
            raise ExperimentFailed(f"{self.waiting} messages should wait, {held} do")
        return WaitingSpeed(self.waiting, messages / put_s, messages / read_s), rows

    def _work(self, role: MemberRole, messages: int) -> float:
        number = next(self._numbers)
        self._crew.come([ClientSpec(number, role, self._url, self._queue, messages)])
        self._crew.go([number])
        if not self._crew.watch_until_done(SECONDS_MAX, PROBE_EVERY_S):
            raise ExperimentFailed(f"{messages} messages took longer than {SECONDS_MAX:g} s")
        mine = next(one for one in self._crew.standings() if one.number == number)
        assert mine.begun_s is not None
        assert mine.ended_s is not None
        self._crew.leave([number])
        return mine.ended_s - mine.begun_s


def waiting_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure the speed at each backlog, and return the section about it."""
    with tidegate_server() as server:
        url = f"tidegate://127.0.0.1:{server.port}"
        with tidegate.connect(url, mode="admin") as control:
            for queue in (EMPTY, FULL):
                control.create_queue(queue, durable=True)
            with client_group(control, EMPTY) as at_empty, client_group(control, FULL) as at_full:
                processors = Processors()
                empty = _Measured(at_empty, control, url, EMPTY)
                full = _Measured(at_full, control, url, FULL)
                empty.speed(scale.speed_messages)  # warm up
                alone, rows = empty.speed(scale.speed_messages)
                progress(f"put {alone.put_per_s:,.0f}/s, read {alone.read_per_s:,.0f}/s")
                pairs: dict[int, list[BacklogPair]] = {}
                for backlog in scale.backlogs:
                    progress(f"{backlog:,} messages wait …")
                    full.fill_to(backlog)
                    pairs[backlog] = [
                        BacklogPair(
                            empty.speed(scale.speed_messages)[0],
                            full.speed(scale.speed_messages)[0],
                        )
                        for _ in range(scale.speed_rounds)
                    ]
                others = processors.share_of_others()
    return _section(scale, rows, pairs, others, folder)


def _ratio(pairs: Sequence[BacklogPair], read: Callable[[WaitingSpeed], float]) -> float:
    return statistics.median(read(pair.full) / read(pair.empty) for pair in pairs)


def _mean(pairs: Sequence[BacklogPair], read: Callable[[BacklogPair], float]) -> float:
    return statistics.fmean(map(read, pairs))


def _put(speed: WaitingSpeed) -> float:
    return speed.put_per_s


def _read(speed: WaitingSpeed) -> float:
    return speed.read_per_s


def _section(
    scale: Scale,
    rows: list[QueueTotalsRow],
    pairs: dict[int, list[BacklogPair]],
    others: float,
    folder: Path,
) -> ExperimentSection:
    _draw(rows, pairs, folder)
    most = max(pairs)
    worst = min(min(_ratio(found, _put), _ratio(found, _read)) for found in pairs.values())
    return ExperimentSection(
        name="fig4",
        title="Speed against waiting messages",
        source="Replicated queues §7.2, figure 4",
        paper=(
            "1 500 messages are put, then read: the rate falls as the queue grows, and reading is "
            "slower than writing."
        ),
        ours=(
            f"With {most:,} waiting, puts run at {_ratio(pairs[most], _put):.2f} and reads at "
            f"{_ratio(pairs[most], _read):.2f} of the speed on an empty queue: the length of a "
            "queue does not matter."
            if worst >= WITHIN
            else f"The worst of all is {worst:.2f} of the speed on an empty queue."
        ),
        drawings=[
            Drawing(
                "fig4.png",
                f"Left: {scale.speed_messages} messages put, then read, as in the paper. Right: "
                "the same with a backlog, means; dashed: on an empty queue, in turn with it.",
            )
        ],
        tables=[
            ReportTable(
                "One transaction for each message; medians of ratios, means of rates",
                ["waiting", "put/s", "put/s empty", "ratio", "read/s", "read/s empty", "ratio"],
                [
                    [
                        f"{backlog:,}",
                        f"{_mean(found, lambda pair: pair.full.put_per_s):,.0f}",
                        f"{_mean(found, lambda pair: pair.empty.put_per_s):,.0f}",
                        f"{_ratio(found, _put):.2f}",
                        f"{_mean(found, lambda pair: pair.full.read_per_s):,.0f}",
                        f"{_mean(found, lambda pair: pair.empty.read_per_s):,.0f}",
                        f"{_ratio(found, _read):.2f}",
                    ]
                    for backlog, found in pairs.items()
                ],
            )
        ],
        bars=[
            bar
            for backlog, found in pairs.items()
            for bar in (
                Bar(f"puts with {backlog:,} waiting, of empty", _ratio(found, _put), WITHIN, "×"),
                Bar(f"reads with {backlog:,} waiting, of empty", _ratio(found, _read), WITHIN, "×"),
            )
        ],
        notes=disturbance(others),
        data={
            "messages": scale.speed_messages,
            "pairs": {str(backlog): msgspec.to_builtins(found) for backlog, found in pairs.items()},
            "series": msgspec.to_builtins(series_of(rows)),
        },
    )


def _draw(rows: list[QueueTotalsRow], pairs: dict[int, list[BacklogPair]], folder: Path) -> None:
    series = series_of(rows)
    names = [f"{backlog:,}" for backlog in pairs]
    x = [float(backlog) for backlog in pairs]

    def line(
        label: str, colour: str, read: Callable[[BacklogPair], float], *, dashed: bool
    ) -> Line:
        means = [_mean(found, read) for found in pairs.values()]
        return Line(label, x, means, dashed=dashed, colour=colour)

    blue, teal = "#1f6fb2", "#2f9e6e"
    draw_panels(
        [
            Panel(
                "Put, then read",
                "seconds",
                "messages a second, and waiting",
                [
                    Line("put", series.at_s, series.produced_per_s, colour=blue),
                    Line("read", series.at_s, series.consumed_per_s, colour=teal),
                    Line(
                        "waiting",
                        series.at_s,
                        [float(count) for count in series.waiting],
                        dashed=True,
                        colour="#8a8f98",
                    ),
                ],
            ),
            Panel(
                "With a backlog",
                "waiting messages",
                "messages a second",
                [
                    line("put", blue, lambda pair: pair.full.put_per_s, dashed=False),
                    line("put, empty", blue, lambda pair: pair.empty.put_per_s, dashed=True),
                    line("read", teal, lambda pair: pair.full.read_per_s, dashed=False),
                    line("read, empty", teal, lambda pair: pair.empty.read_per_s, dashed=True),
                ],
                x_names=names,
            ),
        ],
        folder / "fig4.png",
    )
