"""The demo on a terminal, as the node tells it twice a second; in a pipe one line a second."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo.recent import Moment, Recent
from tidegate.cli.figures import count, milliseconds, seconds, sparkline
from tidegate.cli.output import Cell, Column, terminal_table

_QUEUES = [
    Column("queue", style="bold cyan"),
    Column("in/s", shown=count, right=True, style="green"),
    Column("out/s", shown=count, right=True, style="green"),
    Column("waiting", shown=count, right=True, style="yellow"),
    Column("unacked", shown=count, right=True, spare=True),
    Column("oldest", shown=seconds, right=True, spare=True),
    Column("wait p50", shown=milliseconds, right=True),
    Column("p99", shown=milliseconds, right=True),
    Column("prefetch", shown=count, right=True, style="magenta"),
]
_HISTORIES = [Column("came", style="green"), Column("was there", style="yellow")]
_WORKERS = [
    Column("worker", style="bold cyan"),
    Column("prefetch", shown=count, right=True, style="magenta"),
    Column("unacked", shown=count, right=True),
    Column("handled/s", shown=count, right=True, style="green"),
    Column("handled", shown=count, right=True),
    Column("service p50", shown=milliseconds, right=True),
]
_SPARK_MIN = 8
_SPARK_MAX = 60
# What the columns before the sparkline need.
_QUEUES_WIDTH = 88
_TURNS_SHOWN = 4
_MARGIN = 4


def screen(
    moment: Moment,
    recent: Recent,
    *,
    elapsed_s: float,
    seconds_all: float,
    turns: Sequence[str],
    width: int,
) -> RenderableType:
    """Everything at a glance."""
    parts: list[RenderableType] = [
        _head(elapsed_s, seconds_all, width),
        Padding(_totals(moment), (0, 0, 1, 0)),
        _queue_table(moment, recent, width),
        Padding(_worker_table(moment, width), (1, 0)),
    ]
    parts += [Text(turn, style="dim") for turn in turns[-_TURNS_SHOWN:-1]]
    parts += [Text(turn, style="bold") for turn in turns[-1:]]
    return Padding(Group(*parts), (1, _MARGIN // 2))


def _head(elapsed_s: float, seconds_all: float, width: int) -> Table:
    head = Table.grid(padding=(0, 2))
    shown_s = min(elapsed_s, seconds_all)
    head.add_row(
        Text("Tidegate demo", style="bold"),
        ProgressBar(total=seconds_all, completed=shown_s, width=max(width - 50, 10)),
        Text(f"{shown_s:.0f} of {seconds_all:.0f} s", style="dim"),
    )
    return head


def _totals(moment: Moment) -> Text:
    return Text.assemble(
        (f"{count(moment.in_per_s)}/s", "bold green"),
        " in, ",
        (f"{count(moment.out_per_s)}/s", "bold green"),
        f" out; {count(moment.commits_per_s)} commits/s of {count(moment.messages_per_commit)}, "
        f"{milliseconds(moment.commit_p50_ms)} each (p99 {milliseconds(moment.commit_p99_ms)}); "
        f"nodes use {moment.memory_bytes / 2**20:.0f} MiB",
    )


def _queue_table(moment: Moment, recent: Recent, width: int) -> Table:
    # Two histories when there is room for them: what came, and what was there.
    room = width - _QUEUES_WIDTH
    histories = 2 if room >= 2 * (_SPARK_MIN + 2) else int(room >= _SPARK_MIN + 2)
    columns = [*_QUEUES, *_HISTORIES[:histories]]
    spark = min(room // max(histories, 1) - 2, _SPARK_MAX)
    rows: list[list[Cell]] = []
    for queue in moment.queues:
        history = recent.history[queue.name]
        sparklines = [sparkline(list(one), spark) for one in (history.in_per_s, history.waiting)]
        rows.append(
            [
                queue.name,
                queue.in_per_s,
                queue.out_per_s,
                queue.waiting,
                queue.unacknowledged,
                queue.oldest_age_s,
                queue.wait_p50_ms,
                queue.wait_p99_ms,
                queue.prefetch,
                *sparklines[:histories],
            ]
        )
    return terminal_table(columns, rows, width=width - _MARGIN)


def _worker_table(moment: Moment, width: int) -> Table:
    return terminal_table(
        _WORKERS,
        [
            [
                worker.name,
                worker.prefetch,
                worker.unacknowledged,
                worker.handled_per_s,
                worker.handled,
                worker.service_p50_ms,
            ]
            for worker in sorted(moment.workers, key=lambda one: (one.queue, one.name))
        ],
        width=width - _MARGIN,
    )


def line(moment: Moment, elapsed_s: float) -> str:
    """The same for a pipe, in one line."""
    busiest_p50 = max((queue.wait_p50_ms for queue in moment.queues), default=0.0)
    busiest_p99 = max((queue.wait_p99_ms for queue in moment.queues), default=0.0)
    oldest = max((queue.oldest_age_s for queue in moment.queues), default=0.0)
    return (
        f"{elapsed_s:5.1f} s  in {moment.in_per_s:.0f}/s  out {moment.out_per_s:.0f}/s  "
        f"waiting {moment.waiting}  unacknowledged {moment.unacknowledged}  "
        f"oldest {oldest:.1f} s  wait p50 {busiest_p50:.1f} ms  p99 {busiest_p99:.1f} ms"
    )
