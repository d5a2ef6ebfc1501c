"""What the demo came to: every message counted, from put to handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.cli.demo.recent import Recent
from tidegate.cli.figures import count, milliseconds
from tidegate.cli.output import Cell, Column, Output
from tidegate.lab.bench.load import Duty, Outcome, Tally, tally

_COLUMNS = [
    Column("queue", style="bold cyan"),
    Column("put", shown=count, right=True, spare=True),
    Column("confirmed", shown=count, right=True),
    Column("handled", shown=count, right=True),
    Column("lost", shown=count, right=True, style="bold"),
    Column("repeated", shown=count, right=True, spare=True),
    Column("confirm p50", shown=milliseconds, right=True, spare=True),
    Column("p99", shown=milliseconds, right=True, spare=True),
    Column("handler p50", shown=milliseconds, right=True),
    Column("p99", shown=milliseconds, right=True),
]


class Summary(msgspec.Struct, frozen=True):
    """The demo, counted."""

    seconds: float
    total: Tally
    by_queue: dict[str, Tally]
    peak_in_per_s: float
    peak_out_per_s: float
    drained: bool

    @property
    def good(self) -> bool:
        """Everything confirmed was handled."""
        return self.drained and not self.total.unhandled

    def as_json(self) -> dict[str, Any]:
        """The summary as plain JSON values, without the histograms' buckets."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for found in (plain["total"], *plain["by_queue"].values()):
            found["lost"] = found.pop("unhandled")
            del found["confirm"]["buckets"], found["handler"]["buckets"]
        return plain


def summarize(
    produced: Sequence[tuple[Duty, Outcome]],
    consumed: Sequence[tuple[Duty, Outcome]],
    recent: Recent,
    seconds: float,
    drained: bool,
) -> Summary:
    """Count by queue, and in all."""
    queues = dict.fromkeys(duty.queue for duty, _ in produced)
    return Summary(
        seconds=seconds,
        total=tally(produced, consumed),
        by_queue={
            queue: tally(
                [one for one in produced if one[0].queue == queue],
                [one for one in consumed if one[0].queue == queue],
            )
            for queue in queues
        },
        peak_in_per_s=recent.peak_in_per_s,
        peak_out_per_s=recent.peak_out_per_s,
        drained=drained,
    )


def show(summary: Summary, output: Output) -> None:
    """Print it."""
    rows = [_row(queue, found) for queue, found in summary.by_queue.items()]
    rows.append(_row("all", summary.total))
    output.table(_COLUMNS, rows)
    total = summary.total
    output.line(
        f"{count(total.handled)} messages handled in {summary.seconds:.1f} s, "
        f"at most {count(summary.peak_in_per_s)} in and {count(summary.peak_out_per_s)} out a "
        "second; each was on disk before it was confirmed or delivered.",
        wrap=True,
    )
    if summary.good:
        output.line("Every confirmed message was handled: counted one by one.", style="bold green")
    elif summary.drained:
        output.line(f"{total.unhandled} confirmed messages were LOST.", style="bold red")
    else:
        output.line("The queues were not empty in the end: this machine is too slow for it.")


def _row(name: str, found: Tally) -> list[Cell]:
    return [
        name,
        found.put,
        found.confirmed,
        found.handled,
        found.unhandled,
        found.repeated,
        found.confirm.p50_ms,
        found.confirm.p99_ms,
        found.handler.p50_ms,
        found.handler.p99_ms,
    ]
