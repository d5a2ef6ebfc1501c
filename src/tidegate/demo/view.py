"""The output of the demo: a terminal view, and plain lines in a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tidegate.cli.output import Column, Output, terminal_table
from tidegate.cli.status import attention_lines, format_fleet, format_replicas, service_table
from tidegate.core.text import count, escape_control_characters, milliseconds, seconds, sparkline
from tidegate.demo.evidence import DemoHistories, DemoSnapshot, MetricHistory
from tidegate.demo.scenario import ORDERS, ScenarioStep

if TYPE_CHECKING:
    from rich.live import Live

_REPLICAS = [
    Column("replica", style="bold cyan"),
    Column("state"),
    Column("machine", right=True),
    Column("share", shown="{:.0%}".format, right=True, style="green"),
    Column("waiting", shown=count, right=True, style="yellow"),
    Column("done/s", shown=count, right=True),
    Column("prefetch", shown=count, right=True, style="magenta"),
]
_STEERED = [
    Column("archive's workers", style="bold cyan"),
    Column("wanted/s", shown=count, right=True),
    Column("rate/s", shown=count, right=True, style="green"),
    Column("prefetch", shown=count, right=True, style="magenta"),
    Column("takes", shown=milliseconds, right=True),
]
_MARGIN = 2
_SPARK_MAX = 40
# The maximum and minimum number of lines with events; a low terminal shows fewer.
_TOLD_MAX = 10
_TOLD_MIN = 3
# The rows that everything else needs, without replicas and workers.
_ROWS_BESIDE = 15
_LINE_EVERY_S = 2.0


class DemoView:
    """Shows snapshots and prints events."""

    def __init__(
        self,
        output: Output,
        pipe: IO[str],
        chapters: Sequence[ScenarioStep],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        # The stream for lines if there is no terminal.
        self._pipe = pipe
        self._chapters = list(chapters)
        self._clock = clock
        self._began = clock()
        self._chapter: ScenarioStep | None = None
        self._told: list[tuple[str, str]] = []
        self._live: Live | None = None
        self._line_at = -math.inf
        # The address of the console; empty until it serves.
        self._console_address = ""

    def begin(self, chapter: ScenarioStep) -> None:
        """Print the beginning of a step."""
        self._chapter = chapter
        number = self._chapters.index(chapter) + 1
        self._say(f"{number}. {chapter.title}: {chapter.told}", "bold")

    def serve(self, address: str) -> None:
        """Print the address of the console."""
        self._console_address = address
        self.tell(f"the console shows it all, too: {address}")

    def tell(self, words: str) -> None:
        """Print an event."""
        self._say(words, "")

    def _say(self, words: str, style: str) -> None:
        line = f"{self._at}  {escape_control_characters(words)}"
        self._told.append((line, style))
        if self._live is None:
            print(line, file=self._pipe, flush=True)

    @property
    def _at(self) -> str:
        """The time since the start, formatted so that lines sort by time."""
        return f"{self._clock() - self._began:6.1f} s"

    def show(self, moment: DemoSnapshot, course: MetricHistory, evidence: DemoHistories) -> None:
        """Show a snapshot: redraw the terminal, or print a line every two seconds."""
        if self._live is not None:
            self._live.update(self._screen(moment, course, evidence), refresh=True)
        elif self._clock() - self._line_at >= _LINE_EVERY_S:
            self._line_at = self._clock()
            print(self._line(moment, evidence), file=self._pipe, flush=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Draw the view in this context, if there is a terminal."""
        if not self._output.on_terminal:
            yield
            return
        from rich.live import Live

        with Live(
            console=self._output.console, auto_refresh=False, vertical_overflow="crop"
        ) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def _line(self, moment: DemoSnapshot, evidence: DemoHistories) -> str:
        orders = moment.service(ORDERS)
        parts = [
            f"{ORDERS}: in {orders.in_per_s:.0f}/s, out {orders.out_per_s:.0f}/s",
            f"waiting {orders.waiting}, oldest {orders.oldest_age_s or 0.0:.1f} s",
            f"agreement {orders.light}",
            f"replicas {format_replicas(orders)}",
        ]
        if moment.replicas:
            shares = " ".join(f"{one.share:.0%}" for one in moment.replicas)
            held = " ".join(str(one.prefetch) for one in moment.replicas)
            parts[-1] += f" with shares {shares} and prefetch {held}"
        parts += [
            f"{one.name} does {one.rate_per_s:.0f}/s with prefetch {one.prefetch}"
            for one in moment.steered
        ]
        parts.append(f"{evidence.confirmed} confirmed, {evidence.delivered} given to workers")
        return f"{self._at}  {'; '.join(parts)}"

    def _screen(
        self, moment: DemoSnapshot, course: MetricHistory, evidence: DemoHistories
    ) -> RenderableType:
        size = self._output.console.size
        width = size.width - 2 * _MARGIN
        parts: list[RenderableType] = [
            _cut(self._head(), width),
            _cut(attention_lines(moment.glance)[0], width),
            Text(),
            service_table(moment.glance, width, 4),
            Text(),
            _replica_table(moment, width),
        ]
        if moment.steered:
            parts += [Text(), _steered_table(moment, width)]
        counted = _cut(_message_counts(moment, evidence), width)
        parts += [Text(), _courses(course, width), counted, Text()]
        beside = _ROWS_BESIDE + len(moment.replicas) + len(moment.steered)
        room = min(max(size.height - beside, _TOLD_MIN), _TOLD_MAX)
        for line, style in self._told[-room:]:
            parts.append(_cut(Text(line, style=style or "dim"), width))
        return Padding(Group(*parts), (0, _MARGIN))

    def _head(self) -> Text:
        """Return the title line with the progress through the steps."""
        head = Text("Tidegate demo  ", style="bold")
        for chapter in self._chapters:
            is_now = chapter is self._chapter
            was = self._chapter is not None and self._chapters.index(
                chapter
            ) < self._chapters.index(self._chapter)
            head.append("■" if was else "▶" if is_now else "□", "green" if was or is_now else "dim")
        title = "the curtain rises" if self._chapter is None else self._chapter.title
        head.append(f"  {title}", "bold cyan")
        if self._console_address:
            head.append(f"  {self._console_address}", "dim")
        return head


def _cut(text: Text, width: int) -> Text:
    """Cut a text to one row, because a wrapped row would push out the rows below."""
    text.truncate(width, overflow="ellipsis")
    return text


def _replica_table(moment: DemoSnapshot, width: int) -> RenderableType:
    return terminal_table(
        _REPLICAS,
        [
            [
                f"{ORDERS}, replica {one.number}",
                one.state if one.is_at_work or one.state != "serving" else "no worker",
                one.machine_id,
                one.share,
                one.waiting,
                one.done_per_s,
                one.prefetch,
            ]
            for one in moment.replicas
        ],
        width=width,
    )


def _steered_table(moment: DemoSnapshot, width: int) -> RenderableType:
    return terminal_table(
        _STEERED,
        [
            [one.name, one.target_per_s, one.rate_per_s, one.prefetch, one.service_ms]
            for one in moment.steered
        ],
        width=width,
    )


def _courses(course: MetricHistory, width: int) -> Text:
    spark = min((width - 30) // 3, _SPARK_MAX)
    return Text.assemble(
        ("came ", "dim"),
        (sparkline(list(course.arrived), spark), "green"),
        ("  waited ", "dim"),
        (sparkline(list(course.waiting), spark), "yellow"),
        ("  replicas ", "dim"),
        (sparkline(list(course.replicas), spark), "cyan"),
    )


def _message_counts(moment: DemoSnapshot, evidence: DemoHistories) -> Text:
    oldest = moment.service(ORDERS).oldest_age_s or 0.0
    return Text(
        f"{count(evidence.confirmed)} confirmed, {count(evidence.delivered)} given to workers, "
        f"{count(evidence.again)} again; oldest {seconds(oldest)}; "
        f"{format_fleet(moment.glance.fleet)}",
        style="dim",
    )
