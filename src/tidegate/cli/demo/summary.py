"""The summary of the demo: each promise, and whether the recorded histories show it kept."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo.evidence import Windows, agreed
from tidegate.cli.demo.lessons import Learned
from tidegate.cli.demo.outcome import Outcome
from tidegate.cli.demo.story import ORDERS
from tidegate.cli.figures import count, seconds
from tidegate.cli.output import Output
from tidegate.core.harmless import harmless
from tidegate.core.quantities import format_duration
from tidegate.lab.checker import Verdict

_MARK_WIDTH = 10


class Promise(msgspec.Struct, frozen=True):
    """One promise, whether it was kept, and the count that decides."""

    promised: str
    kept: bool
    counted: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The checked result of the demo."""

    seconds: float
    verdict: Verdict
    # The windows of `orders` as clients saw them; and those of each agreement from the leader's
    # totals: met, warned, breached.
    windows: Windows
    windows_of_leader: dict[str, tuple[int, int, int]]
    longest_wait_s: float
    drained: bool
    replicas_most: int
    replicas_left: int
    machines_most: int
    arrived_most_per_s: float
    killed: str
    shifted: str
    adapted: str

    @property
    def promises(self) -> list[Promise]:
        """The promises, the most important first."""
        found, windows = self.verdict, self.windows
        metric = agreed().metrics[0]
        wait = f"{metric.name} of {ORDERS} under {format_duration(metric.breach)}"
        return [
            Promise(
                "nothing that was confirmed is lost, whoever is killed",
                found.outcome == "pass" and not found.lost,
                f"{count(found.lost)} of {count(found.confirmed)} lost, "
                f"{count(found.undrained)} not handled in the end",
            ),
            Promise(
                "what is delivered again says so",
                not found.unflagged,
                f"{count(found.duplicates_flagged)} came again and said so, "
                f"{count(found.unflagged)} did not",
            ),
            Promise(
                "a customer's orders come in their order",
                not found.out_of_order,
                f"{count(found.out_of_order)} of {count(found.deliveries)} deliveries out of order",
            ),
            Promise(
                "nothing is made up, spoiled or done twice",
                not found.unexpected + found.acked_again + found.stored_twice,
                f"{count(found.unexpected)} unexpected, {count(found.stored_twice)} stored twice, "
                f"{count(found.acked_again)} delivered after their end",
            ),
            Promise(
                f"{wait} in {agreed().objective:.0%} of all windows",
                windows.are_kept,
                f"{windows.met} met, {windows.warned} warned, {windows.breached} breached by what "
                f"customers and workers saw; the longest wait was {seconds(self.longest_wait_s)}",
            ),
            Promise(
                "replicas come with the load, and go with it",
                self.replicas_most > 1 and self.replicas_left == 1,
                f"1 at first, {self.replicas_most} at {self.arrived_most_per_s:.0f}/s, "
                f"{self.replicas_left} in the end, on {self.machines_most} machines at most",
            ),
        ]

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["verdict"]["outcome"] = self.verdict.outcome
        return plain | {"promises": msgspec.to_builtins(self.promises), "kept": self.good}


def summarize(
    outcome: Outcome, verdict: Verdict, seen: tuple[Windows, float], story_s: float
) -> Summary:
    """Return the summary of the results."""
    windows, longest_s = seen
    course = outcome.course
    return Summary(
        seconds=story_s,
        verdict=verdict,
        windows=windows,
        windows_of_leader=outcome.windows_of_leader,
        longest_wait_s=longest_s,
        drained=outcome.drained,
        replicas_most=course.replicas_most,
        replicas_left=outcome.replicas_left,
        machines_most=course.machines_most,
        arrived_most_per_s=course.arrived_most_per_s,
        killed=outcome.killed,
        shifted=outcome.shifted,
        adapted=outcome.adapted,
    )


def show(summary: Summary, learned: Learned | None, output: Output) -> None:
    """Print the summary."""
    output.line("")
    output.line("What was promised, and what was kept (counted by the checker)", style="bold")
    for promise in summary.promises:
        mark, style = ("kept", "green") if promise.kept else ("BROKEN", "bold red")
        _line(output, mark, style, f"{promise.promised}: {promise.counted}")
    for example in summary.verdict.examples:
        _line(output, "", "red", example)
    for agreement, counts in summary.windows_of_leader.items():
        _line(output, "leader", "dim", f"windows of {agreement}: {_counted(counts)}")
    for label, text in (
        ("killed", summary.killed),
        ("shared", summary.shifted),
        ("steered", summary.adapted),
    ):
        if text:
            _line(output, label, "dim", text)
    if learned is not None:
        show_lessons(learned, output)
    if not summary.good:
        output.line("")
        output.line(
            "Not everything was kept. If nothing was lost, this computer was too busy or too slow "
            "for it: try again when nothing else runs.",
            style="bold red",
            wrap=True,
        )


def show_lessons(learned: Learned, output: Output) -> None:
    """Print the learned models with reasons, and the windows from the lake."""
    output.line("")
    output.line(f"What Spark learned from it, in {learned.seconds:.0f} s", style="bold")
    for lesson in learned.lessons:
        mark, style = ("accepted", "green") if lesson.accepted else ("refused", "yellow")
        _line(output, mark, style, f"{lesson.kind} of {lesson.subject}: {lesson.reason}")
    for job, failure in learned.failures.items():
        _line(output, "failed", "bold red", f"{job}: {failure}")
    for agreement, counts in learned.compliance.items():
        _line(output, "lake", "dim", f"the same windows of {agreement}: {_counted(counts)}")


def _counted(windows: tuple[int, int, int]) -> str:
    met, warned, breached = windows
    return f"{met} met, {warned} warned, {breached} breached"


def _line(output: Output, mark: str, style: str, text: str) -> None:
    text = harmless(text)
    if not output.on_terminal:
        output.line(f"  {mark:<9}{text}" if mark else f"  {text}")
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_MARK_WIDTH, style=style)
    grid.add_column(overflow="fold")
    grid.add_row(f"  {mark}", Text(text))
    output.console.print(grid)
