"""The command `explain`: the measurements, rule, action and alternative of each decision."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidegate.cli.options import DEFAULT, ConfigOption, UrlOption, ask, queue_key
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import StoreDataOption, StoreOption, ask_store, running_stores
from tidegate.core.decisions import OVERRIDE_LAW, Decision, format_decision, format_rule
from tidegate.core.errors import InvalidValue, QueueNotExisting, TidegateError, Unavailable
from tidegate.core.services import decision_subject
from tidegate.core.text import escape_control_characters

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.storage.postgres.store import PostgresStore
    from tidegate.telemetry.stats import ConsumerStats, ControlStats, QueueStats


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of a queue or an HTTP service; without it, the decisions about "
            "machines are shown.",
        ),
    ] = None,
    number: Annotated[
        int,
        typer.Option("--number", "-n", min=1, max=500, help="Maximum number of decisions to show."),
    ] = 20,
    prefetch: Annotated[
        bool,
        typer.Option(
            "--prefetch",
            help="Show the last control steps of each consumer whose prefetch is controlled.",
        ),
    ] = False,
    url: UrlOption = DEFAULT,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Explain why a queue or an HTTP service has its replicas: list its decisions, newest last.

    Without NAME, explain the number of machines. A node is asked (--url), and for an HTTP service
    also the store (--store, --data). With --prefetch, show the control steps of the prefetch of the
    queue's consumers.

    Example: `tidegate explain orders -n 5`
    """
    output = Output(json)
    if prefetch:
        explain_prefetch(output, url, queue, number)
        return

    # Use the local store if it exists. A user who names a node wants that node's answer.
    found = None
    if queue is not None and (store or data or url == DEFAULT):
        hosted = about_service(queue, number, store, data, config)
        found = None if hosted is None else (f"service {queue}", hosted)
    subject, decisions = found or ask(url, lambda mq: decisions_from_node(mq, queue, number))
    if json:
        output.json(decisions)
        return
    if not decisions:
        output.line(f"nothing was decided about {subject} yet", style="dim")
        return
    for decision in reversed(decisions):
        print_decision(output, decision)


async def decisions_from_node(
    mq: Client, name: str | None, count: int
) -> tuple[str, list[Decision]]:
    """Return what a name means at the node, and its decisions; queues come before services."""
    if name is None:
        return "the machines", await mq.explain(None, count=count)
    try:
        return f"queue {name}", await mq.explain(queue_key(name), count=count)
    except QueueNotExisting as missing:
        try:
            return f"service {name}", await mq.explain_service(name, count=count)
        except InvalidValue:
            raise QueueNotExisting(f"{missing}; nor is a service called so") from None
        except TidegateError:
            # The user may not ask this, or the node does not support the question.
            raise missing from None


def about_service(
    name: str, count: int, store: str | None, data: Path | None, config: Path | None
) -> list[Decision] | None:
    """Return the decisions about a service; None if it does not exist or a queue is meant."""

    async def look(found: PostgresStore) -> list[Decision] | None:
        if name not in [one.spec.name for one in await found.services()]:
            return None
        if not (store or data) and await found.find_queue(None, name) is not None:
            return None
        documents = await found.decisions(decision_subject(name), count)
        return [msgspec.json.decode(one, type=Decision) for one in documents]

    settings = load_settings(config, os.environ)
    try:
        return ask_store(running_stores(store, data, settings), look)
    except Unavailable:
        # Without a named store, the question goes to the node.
        if store or data:
            raise
        return None


def print_decision(output: Output, decision: Decision) -> None:
    headline, lines = headline_of(decision), format_decision(decision)
    if not output.on_terminal:
        print(headline)
        for label, text in lines:
            print(f"\t{label}\t{escape_control_characters(text)}")
        return
    style = "bold" if decision.carried_out else "bold yellow"
    output.console.print(Text(headline, style=style))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, justify="right")
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(label, Text(escape_control_characters(text)))
    output.console.print(Padding(grid, (0, 0, 1, 2)))


def headline_of(decision: Decision) -> str:
    """Return the time, the subject, the rule and the law of a decision, as text."""
    at = datetime.fromtimestamp(decision.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    headline = (
        f"{at}  {decision.service.lstrip('#')}: "
        f"{escape_control_characters(format_rule(decision.rule))}"
    )
    return headline if decision.law == OVERRIDE_LAW else f"{headline} (law {decision.law})"


# The command `explain QUEUE --prefetch`: the last control steps of each consumer.


# A node keeps this many steps.
_STEPS_MAX = 60


def _format_value(value: float) -> str:
    return f"{value:.4g}"


_COLUMNS = [
    Column("at"),
    Column("mode", style="bold"),
    Column("target/s", shown=_format_value, right=True),
    Column("rate/s", shown=_format_value, right=True),
    Column("error/s", shown=_format_value, right=True),
    Column("P", shown=_format_value, right=True, spare=True),
    Column("I", shown=_format_value, right=True, spare=True),
    Column("D", shown=_format_value, right=True, spare=True),
    Column("wanted", shown=_format_value, right=True, spare=True),
    Column("level", shown=_format_value, right=True),
    Column("set", shown=_format_value, right=True),
    Column("limit"),
    Column("held", shown=_format_value, right=True, spare=True),
    Column("notes", spare=True),
]


def explain_prefetch(output: Output, url: str, queue: str | None, number: int) -> None:
    """Print the control steps of each consumer, newest last."""
    if queue is None:
        raise InvalidValue("of which queue? `tidegate explain QUEUE --prefetch`")

    async def look(mq: Client) -> list[QueueStats]:
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


def _row(step: ControlStats) -> list[Cell]:
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


def _document(part: QueueStats, consumer: ConsumerStats) -> dict[str, object]:
    return {
        "queue": part.logical or part.name,
        "replica": part.replica,
        "client": consumer.client_name,
        "consumer": consumer.consumer,
        "goal": part.prefetch_goal,
        "steps": consumer.control,
    }
