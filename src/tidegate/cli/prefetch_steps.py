"""The command `explain QUEUE --prefetch`: the last control steps of each consumer."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.cli.asking import ask, queue_key
from tidegate.cli.output import Cell, Column, Output
from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.telemetry.numbers import ConsumerNumbers, ControlNumbers, QueueNumbers

# A node keeps this many steps.
_STEPS_MAX = 60


def _figure(value: float) -> str:
    return f"{value:.4g}"


_COLUMNS = [
    Column("at"),
    Column("mode", style="bold"),
    Column("target/s", shown=_figure, right=True),
    Column("rate/s", shown=_figure, right=True),
    Column("error/s", shown=_figure, right=True),
    Column("P", shown=_figure, right=True, spare=True),
    Column("I", shown=_figure, right=True, spare=True),
    Column("D", shown=_figure, right=True, spare=True),
    Column("wanted", shown=_figure, right=True, spare=True),
    Column("level", shown=_figure, right=True),
    Column("set", shown=_figure, right=True),
    Column("limit"),
    Column("held", shown=_figure, right=True, spare=True),
    Column("notes", spare=True),
]


def explain_prefetch(output: Output, url: str, queue: str | None, number: int) -> None:
    """Print the control steps of each consumer, newest last."""
    if queue is None:
        raise InvalidValue("of which queue? `tidegate explain QUEUE --prefetch`")

    async def look(mq: Client) -> list[QueueNumbers]:
        found = await mq.stats(queue_key(queue), steps=min(number, _STEPS_MAX))
        return [one for node in found.nodes for one in node.queues]

    parts = ask(url, look)
    steered = [(part, one) for part in parts for one in part.consumers if one.control]
    if output.as_json:
        output.json([_document(part, one) for part, one in steered])
        return
    goal = next((part.prefetch_goal for part in parts if part.prefetch_goal), "")
    if not goal:
        output.line(
            f"the prefetch of {queue} is not steered; `tidegate policy {queue} --prefetch-rate "
            "400/s` does it, or --prefetch-keep-up",
            style="dim",
        )
        return
    output.line(f"{queue}: {goal}")
    if not steered:
        output.line("nobody consumes from it at the moment", style="dim")
    for part, consumer in steered:
        where = f" of replica {part.replica}" if part.replica else ""
        title = f"{consumer.client_name}, consumer {consumer.consumer}{where}"
        if not output.on_terminal:
            output.line(title)
        output.table(_COLUMNS, [_row(step) for step in consumer.control], title=title)


def _row(step: ControlNumbers) -> list[Cell]:
    at = datetime.fromtimestamp(step.at).astimezone()
    return [
        f"{at:%H:%M:%S}.{at.microsecond // 100_000}",
        step.mode,
        step.target_per_s,
        step.rate_per_s,
        step.error_per_s,
        step.proportional,
        step.integral,
        step.derivative,
        step.wanted,
        step.level,
        step.output,
        step.saturated,
        step.held,
        "; ".join(["starved", *step.notes] if step.starved else step.notes),
    ]


def _document(part: QueueNumbers, consumer: ConsumerNumbers) -> dict[str, object]:
    return {
        "queue": part.logical or part.name,
        "replica": part.replica,
        "client": consumer.client_name,
        "consumer": consumer.consumer,
        "goal": part.prefetch_goal,
        "steps": consumer.control,
    }
