"""The commands `queues`, `create`, `delete` and `purge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask, queue_key
from tidegate.cli.figures import count, seconds, yes_no
from tidegate.cli.option_groups import spread
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.policy_settings import SetOption, parse_policy
from tidegate.cli.prefetch_options import NO_GOAL, GoalOptions
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch_words import told
from tidegate.core.replication import logical_name

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.core.model import QueueInfo
    from tidegate.telemetry.numbers import QueueNumbers

_COLUMNS = [
    Column("id", right=True, style="dim"),
    Column("queue", style="bold"),
    Column("durable", shown=yes_no, spare=True),
    Column("node", spare=True),
    Column("replicas", shown=count, right=True, spare=True),
    Column("waiting", shown=count, right=True),
    Column("unacknowledged", shown=count, right=True),
    Column("consumers", shown=count, right=True),
    Column("oldest", shown=seconds, right=True),
    Column("prefetch goal", spare=True),
]

# The name of the node that serves a queue or a replica, and the stats of it.
Served: TypeAlias = "tuple[str, QueueNumbers]"
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name, or #id.")]


def register(app: typer.Typer) -> None:
    app.command("queues")(queues)
    app.command("create")(create)
    app.command("delete")(delete)
    app.command("purge")(purge)


def queues(url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """List the queues, with their messages, consumers and prefetch goals."""
    output = Output(json)

    async def look(mq: Client) -> tuple[list[QueueInfo], dict[str, list[Served]]]:
        known = await mq.queues()
        served: dict[str, list[Served]] = {}
        for node in (await mq.stats()).nodes:
            for queue in node.queues:
                served.setdefault(logical_name(queue.name), []).append((node.name, queue))
        return known, served

    known, served = ask(url, look)
    rows = [_row(queue, served.get(queue.name, [])) for queue in known]
    if json:
        names = ["queue_id", "queue", "durable", "node", "replicas", "waiting", "unacknowledged"]
        names += ["consumers", "oldest_age_s", "prefetch_goal"]
        output.json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows or not output.on_terminal:
        output.table(_COLUMNS, rows)
    else:
        output.line("there are no queues yet; `tidegate create NAME` makes one", style="dim")


def _row(queue: QueueInfo, served: list[Served]) -> list[Cell]:
    """Return the row of a queue; the numbers of a logical queue are sums over its replicas."""
    known: list[Cell] = [queue.queue_id, queue.name, queue.durable]
    goal = None if queue.policy.prefetch is None else told(queue.policy.prefetch)
    if not served:
        # No node owns the queue at the moment, so its stats are unknown.
        return [*known, None, None, None, None, None, None, goal]
    parts = [numbers for _, numbers in served]
    replicas = sum(1 for numbers in parts if numbers.name != queue.name)
    return [
        *known,
        ", ".join(sorted({node for node, _ in served})),
        replicas if queue.elastic else None,
        sum(numbers.waiting for numbers in parts),
        sum(numbers.unacknowledged for numbers in parts),
        sum(len(numbers.consumers) for numbers in parts),
        max(numbers.oldest_age_s for numbers in parts),
        goal,
    ]


@spread("auto", "off")
def create(
    name: Annotated[str, typer.Argument(help="Name of the new queue.")],
    transient: Annotated[
        bool, typer.Option("--transient", help="Keep its messages in memory only.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="It is fine if it exists already.")
    ] = False,
    settings: SetOption = None,
    goal: GoalOptions = NO_GOAL,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Create a queue.

    Example: `tidegate create orders --set lease=30s --set deliveries_max=5`
    """
    output = Output(json)
    policy = QueuePolicy(**parse_policy(settings or []))
    if goal.are_given:
        policy = msgspec.structs.replace(policy, prefetch=goal.changed(policy.prefetch, name))
    queue = ask(
        url,
        lambda mq: mq.create_queue(name, durable=not transient, exist_ok=exist_ok, policy=policy),
        "read-write",
    )
    if json:
        output.json({"queue_id": queue.queue_id, "queue": queue.name, "durable": queue.durable})
    else:
        kind = "durable" if queue.durable else "transient"
        output.line(f"queue {queue.name} has id {queue.queue_id} and is {kind}")


def delete(queue: QueueArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Delete a queue and all its messages."""
    output = Output(json)
    ask(url, lambda mq: mq.delete_queue(queue_key(queue)), "read-write")
    if json:
        output.json({"deleted": queue})
    else:
        output.line(f"queue {queue} is deleted")


def purge(queue: QueueArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Drop all waiting messages of a queue.

    Messages that consumers hold are not affected.
    """
    output = Output(json)
    dropped = ask(url, lambda mq: mq.purge(queue_key(queue)), "read-write")
    if json:
        output.json({"queue": queue, "dropped": dropped})
    else:
        output.line(f"{dropped} messages of {queue} were dropped")
