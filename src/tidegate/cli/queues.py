"""The commands `policy`, `pause`, `resume`, `dead` and `redrive`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask, queue_key
from tidegate.cli.figures import seconds
from tidegate.cli.option_groups import spread
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.payload import as_json, preview
from tidegate.cli.policy_settings import SetOption, parse_policy
from tidegate.cli.prefetch_options import NO_GOAL, GoalOptions
from tidegate.cli.queues import QueueArgument
from tidegate.core.errors import ChangedMeanwhile, QueueNotExisting
from tidegate.core.model import DEAD_SUFFIX, DeathReason, QueueInfo, QueuePolicy
from tidegate.core.prefetch_words import told
from tidegate.core.quantities import format_duration

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.message import Message

_COLUMNS = [Column("policy", style="bold"), Column("value"), Column("default", spare=True)]
_DEAD_COLUMNS = [
    Column("id", right=True, style="dim"),
    Column("died", shown=seconds, right=True),
    Column("reason", style="bold"),
    Column("deliveries", right=True),
    Column("error"),
    Column("payload", spare=True),
]
# Another client may change the policy concurrently, so the change is tried again this many times.
_TRIES_MAX = 8


def register(app: typer.Typer) -> None:
    app.command("policy")(policy)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("dead")(dead)
    app.command("redrive")(redrive)


@spread()
def policy(
    queue: QueueArgument,
    settings: SetOption = None,
    goal: GoalOptions = NO_GOAL,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show the policy of a queue; with --set or a prefetch goal, change it first.

    Example: `tidegate policy orders --set ttl=1h`
    """
    output = Output(json)
    changes = parse_policy(settings or [])

    async def work(mq: Client) -> QueueInfo:
        if changes or goal.are_given:
            await change_policy(mq, queue, changes, goal)
        return await mq.queue(queue_key(queue))

    info = ask(url, work, "read-write" if changes or goal.are_given else "read-only")
    if json:
        fields = {name: getattr(info.policy, name) for name in QueuePolicy.__struct_fields__}
        output.json({"queue": info.name, **fields})
        return
    plain = QueuePolicy()
    output.table(
        _COLUMNS,
        [
            [name.removesuffix("_s"), *(_text(info, name, one) for one in (info.policy, plain))]
            for name in QueuePolicy.__struct_fields__
        ],
    )


async def change_policy(
    mq: Client, queue: str, changes: Mapping[str, Any], goal: GoalOptions
) -> QueuePolicy:
    """Change fields of a queue's policy, and try again if another client changes it meanwhile."""
    for left in reversed(range(_TRIES_MAX)):
        info = await mq.queue(queue_key(queue))
        wanted = dict(changes)
        if goal.are_given:
            wanted["prefetch"] = goal.changed(info.policy.prefetch, info.name)
        try:
            return await mq.set_policy(queue_key(queue), before=info.policy, **wanted)
        except ChangedMeanwhile:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _text(info: QueueInfo, field: str, source: QueuePolicy) -> str:
    value = getattr(source, field)
    if field == "dead_letter":
        return source.dead_letter_queue(info.name) or "nowhere"
    if field == "prefetch":
        return told(value)
    if value is None:
        return "the node's" if field == "lease_s" else "none"
    if field.endswith("_s"):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def pause(queue: QueueArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Stop deliveries from a queue until `resume`; puts still succeed."""
    _set_paused(queue, True, url, json)


def resume(queue: QueueArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Resume deliveries from a paused queue."""
    _set_paused(queue, False, url, json)


def _set_paused(queue: str, paused: bool, url: str, json: bool) -> None:
    output = Output(json)
    ask(url, lambda mq: mq.set_policy(queue_key(queue), paused=paused), "read-write")
    if json:
        output.json({"queue": queue, "paused": paused})
    else:
        output.line(f"queue {queue} is {'paused' if paused else 'resumed'}")


def _dead_queue(queue: str) -> str | int:
    """Return the dead-letter queue of a queue; `queue` may also name that queue itself."""
    key = queue_key(queue)
    return key if isinstance(key, int) or key.endswith(DEAD_SUFFIX) else key + DEAD_SUFFIX


def dead(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option(min=1, help="Messages at most.")] = 20,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show the dead letters of a queue, with the reason for each."""
    output = Output(json)

    async def look(mq: Client) -> list[Message]:
        try:
            return await mq.browse(_dead_queue(queue), limit=limit)
        except QueueNotExisting:
            # The dead-letter queue is created when first needed. Raise an error only if the queue
            # itself is missing.
            await mq.queue(queue_key(queue))
            return []

    messages = ask(url, look)
    if json:
        output.json([_dead_json(message) for message in messages])
        return
    if not messages and output.on_terminal:
        output.line(f"queue {queue} has no dead letters", style="dim")
        return
    now = time.time()
    output.table(_DEAD_COLUMNS, [_dead_row(message, now) for message in messages])


def _dead_json(message: Message) -> dict[str, Any]:
    deaths = [
        {**_fields(death), "failures": [_fields(failure) for failure in death.failures]}
        for death in message.deaths
    ]
    return {**as_json(message), "deaths": deaths}


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _dead_row(message: Message, now: float) -> list[Any]:
    death = message.deaths[-1] if message.deaths else None
    if death is None:
        return [message.message_id, None, None, None, None, preview(message.payload)]
    return [
        message.message_id,
        max(now - death.at, 0.0),
        str(death.reason),
        death.deliveries,
        death.error or "",
        preview(message.payload),
    ]


def redrive(
    queue: QueueArgument,
    to: Annotated[
        str | None, typer.Option(help="To this queue, instead of where each died.")
    ] = None,
    message_id: Annotated[
        list[int] | None, typer.Option("--id", help="Only this message; may be repeated.")
    ] = None,
    reason: Annotated[
        DeathReason | None, typer.Option(help="Only those that died of this.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Messages at most.")] = None,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Return dead letters to the queue they died in, or to another one with --to.

    QUEUE is the queue or its dead-letter queue. The options select messages; without them all
    return.

    Example: `tidegate redrive orders --limit 100`
    """
    output = Output(json)

    async def send_back(mq: Client) -> int:
        dead_queue = _dead_queue(queue)
        try:
            await mq.queue(dead_queue)
        except QueueNotExisting:
            # The dead-letter queue is created when first needed. Raise an error only if the queue
            # itself is missing.
            await mq.queue(queue_key(queue))
            return 0
        return await mq.redrive(
            dead_queue, to=to, message_ids=message_id, reason=reason, limit=limit
        )

    count = ask(url, send_back, "read-write")
    if json:
        output.json({"queue": queue, "redriven": count})
    else:
        output.line(f"{count} {'message' if count == 1 else 'messages'} sent back")
