"""The commands `queues`, `create`, `delete` and `purge`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from tidegate.cli.options import (
    DEFAULT,
    NO_GOAL,
    GoalOptions,
    UrlOption,
    ask,
    flatten_options,
    queue_key,
)
from tidegate.cli.output import Cell, Column, JsonOption, Output, message_json, preview
from tidegate.core.errors import ChangedMeanwhile, InvalidValue, QueueNotExisting
from tidegate.core.model import DEAD_SUFFIX, DeathReason, Overflow, QueueInfo, QueuePolicy
from tidegate.core.prefetch import format_goal, parse_goal
from tidegate.core.text import (
    DURATION_IS,
    count,
    expected_type,
    format_duration,
    parse_duration_s,
    parse_size_bytes,
    redacted_value,
    seconds,
    yes_no,
)
from tidegate.core.topology import logical_name

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.message import Message
    from tidegate.telemetry.stats import QueueStats


# Policies as text: `lease=30s`, `bytes_max=64MiB`, `ttl=none`.


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a key of the queue's policy, such as lease=30s, deliveries_max=5, "
        "length_max=10000 or overflow=refuse; may be repeated. `tidegate policy "
        "QUEUE` lists all keys.",
    ),
]


def parse_policy(settings: list[str]) -> dict[str, Any]:
    """Return the policy fields in `NAME=VALUE` texts, converted to their types."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        field = _field_called(name.strip())
        if not equals:
            raise InvalidValue(f"{setting!r} is no setting: write {name}=VALUE")
        changes[field] = _value(field, text.strip())
    return changes


def policy_keys() -> set[str]:
    """Return all names of policy keys, with and without the suffix `_s`."""
    fields = QueuePolicy.__struct_fields__
    return {*fields, *(field.removesuffix("_s") for field in fields)}


def _field_called(name: str) -> str:
    for field in QueuePolicy.__struct_fields__:
        if name.replace("-", "_") in (field, field.removesuffix("_s")):
            return field
    known = ", ".join(field.removesuffix("_s") for field in QueuePolicy.__struct_fields__)
    raise InvalidValue(f"a policy has no {name!r}; it has {known}")


def _value(field: str, text: str) -> Any:
    if text.lower() == "none" and field in ("lease_s", "ttl_s", "length_max", "bytes_max"):
        return None
    if field == "prefetch":
        return parse_goal(text)
    if field == "dead_letter":
        # An empty text disables dead letters; `default` means the queue's name with a suffix.
        return None if text.lower() == "default" else text
    if field == "bytes_max":
        return parse_size_bytes(text)
    if field.endswith("_s"):
        return _duration_s(field, text)
    if field == "overflow" and text not in list(Overflow):
        raise InvalidValue(f"overflow is one of {', '.join(Overflow)}, not {text!r}")
    try:
        return msgspec.convert(text, _types()[field], strict=False)
    except msgspec.ValidationError:
        must = expected_type(_types()[field])
        raise InvalidValue(f"{field} = {redacted_value(text)}: must be {must}") from None


def _duration_s(field: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except InvalidValue:
        key = field.removesuffix("_s")
        raise InvalidValue(f"{key} = {redacted_value(text)}: must be {DURATION_IS}") from None


def _types() -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(QueuePolicy)}


_QUEUE_COLUMNS = [
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
Served: TypeAlias = "tuple[str, QueueStats]"
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name or #id of the queue.")]


def register_queues(app: typer.Typer) -> None:
    app.command("queues")(queues)
    app.command("create")(create_queue)
    app.command("delete")(delete_queue)
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
        output.table(_QUEUE_COLUMNS, rows)
    else:
        output.line("there are no queues yet; `tidegate create NAME` makes one", style="dim")


def _row(queue: QueueInfo, served: list[Served]) -> list[Cell]:
    """Return the row of a queue; the numbers of a logical queue are sums over its replicas."""
    known: list[Cell] = [queue.queue_id, queue.name, queue.durable]
    goal = None if queue.policy.prefetch is None else format_goal(queue.policy.prefetch)
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


@flatten_options("auto", "off")
def create_queue(
    name: Annotated[str, typer.Argument(help="Name of the new queue.")],
    transient: Annotated[
        bool, typer.Option("--transient", help="Keep the messages of the queue in memory only.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the queue already exists.")
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


def delete_queue(queue: QueueArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
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


# The commands `policy`, `pause`, `resume`, `dead` and `redrive`.


_POLICY_COLUMNS = [Column("policy", style="bold"), Column("value"), Column("default", spare=True)]
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


def register_policies(app: typer.Typer) -> None:
    app.command("policy")(policy)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("dead")(dead)
    app.command("redrive")(redrive)


@flatten_options()
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
        _POLICY_COLUMNS,
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
        return format_goal(value)
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
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages to show.")] = 20,
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
    return {**message_json(message), "deaths": deaths}


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
        str | None,
        typer.Option(
            help="Send the messages to this queue instead of the queue where each one died."
        ),
    ] = None,
    message_id: Annotated[
        list[int] | None,
        typer.Option("--id", help="Send back only the message with this id; may be repeated."),
    ] = None,
    reason: Annotated[
        DeathReason | None,
        typer.Option(help="Send back only the messages that died for this reason."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of messages to send back.")
    ] = None,
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
