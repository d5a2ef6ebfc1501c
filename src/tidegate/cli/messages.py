"""The commands `put`, `get` and `peek`.

`get` takes a message under a lease, prints it, and acknowledges it only after that. If the reader
of a pipe has ended, unread messages return to the queue.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.command_line import EMPTY_RESULT
from tidegate.cli.options import DEFAULT, UrlOption, ask, duration_option, queue_key
from tidegate.cli.output import (
    Cell,
    Column,
    JsonOption,
    Output,
    message_json,
    preview,
    stdin_lines,
    write,
)
from tidegate.cli.queues import QueueArgument
from tidegate.core.errors import NoMessagesInQueue, NoMessagesRetrieved, Notice, TidegateError
from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST
from tidegate.core.text import seconds, yes_no

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.message import Message
    from tidegate.core.model import Filter, QueueInfo, TopicInfo


# `get` prints at once, so the lease only has to outlast a slow reader of the output.
_LEASE_S = 60.0

_PEEK_COLUMNS = [
    Column("id", right=True, style="dim"),
    Column("age", shown=seconds, right=True),
    Column("priority", right=True),
    Column("sender", right=True, spare=True),
    Column("receiver", right=True, spare=True),
    Column("context", right=True, spare=True),
    Column("bytes", right=True, spare=True),
    Column("payload"),
]


PayloadArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PAYLOAD",
        help="Text of the message; without it or with -, each line of stdin is a message.",
    ),
]
WholeOption = Annotated[
    bool, typer.Option("--whole", help="Send all of stdin as one message, byte for byte.")
]
PriorityOption = Annotated[
    int,
    typer.Option(
        min=PRIORITY_LOWEST,
        max=PRIORITY_HIGHEST,
        help="Priority of the message; 10 is the highest.",
    ),
]
ContentTypeOption = Annotated[
    str | None, typer.Option(help="Content type of the message, such as application/json.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Header of the message as name and value, such as region=eu; may be repeated."
    ),
]


class ReadOrder(StrEnum):
    """Which message `get` takes first."""

    OLDEST = "oldest"
    PRIORITY = "priority"


def register(app: typer.Typer) -> None:
    app.command("put")(put)
    app.command("get")(get)
    app.command("peek")(peek)


def put(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    payload: PayloadArgument = None,
    whole: WholeOption = False,
    priority: PriorityOption = PRIORITY_DEFAULT,
    receiver: Annotated[
        str | None,
        typer.Option(help="Deliver the message only to this client, given by name or #id."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Number that the reply to this message carries.")
    ] = None,
    content_type: ContentTypeOption = None,
    header: HeaderOption = None,
    delay: Annotated[
        float | None, duration_option("Deliver the message after this delay, such as 30s.")
    ] = None,
    ttl: Annotated[
        float | None, duration_option("Drop the message after this time, such as 1h.")
    ] = None,
    dedup_id: Annotated[
        str | None,
        typer.Option(
            help="Store the message only if no earlier message of the dedup window has the same id."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Group of the message; a group's messages are processed in order, one at a time."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant of the message; the queue shares its capacity fairly between tenants."
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the queue if it does not exist.")
    ] = False,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Put a message, or each line of stdin, in a queue; return when the messages are on disk.

    Example: `tidegate put orders '{"item": 7}' --content-type application/json`
    """
    output = Output(json)
    headers = headers_of(header or [])
    lone = lone_payload(payload, whole)
    if lone is None and sys.stdin.isatty():
        print("one message per line, Ctrl-D ends", file=sys.stderr)

    async def work(mq: Client) -> tuple[int, int | None]:
        if create:
            await mq.create_queue(queue, exist_ok=True)
        receiver_id = None if receiver is None else await _client_id(mq, receiver)

        def put_one(data: bytes) -> asyncio.Future[int]:
            return mq.put(
                queue,
                data,
                receiver=receiver_id,
                context=context,
                priority=priority,
                content_type=content_type,
                headers=headers or None,
                delay=delay,
                ttl=ttl,
                dedup_id=dedup_id,
                group=group,
                tenant=tenant,
            )

        if lone is not None:
            return 1, await put_one(lone)
        # Report an unknown queue before the first line is read.
        await mq.queue(queue)
        confirmed = 0
        try:
            async for lines in stdin_lines():
                confirmed += await _put_all([put_one(line) for line in lines])
        except TidegateError as failure:
            raise type(failure)(f"{failure} ({confirmed} messages were put before)") from None
        return confirmed, None

    messages, message_id = ask(url, work, "read-write")
    if json and message_id is not None:
        output.json({"queue": queue, "messages": messages, "message_id": message_id})
    elif json:
        output.json({"queue": queue, "messages": messages})
    elif message_id is not None:
        output.line(str(message_id))
    else:
        output.line(f"{messages} {'message' if messages == 1 else 'messages'} put")


def lone_payload(payload: str | None, whole: bool) -> bytes | None:
    """Return the single message to put, or None if each line of stdin is a message."""
    if payload is not None and payload != "-":
        if whole:
            raise typer.BadParameter("--whole reads stdin: leave the payload out, or give -")
        # Keep argument bytes that are not valid UTF-8.
        return payload.encode(errors="surrogateescape")
    return sys.stdin.buffer.read() if whole else None


def headers_of(given: list[str]) -> dict[str, str]:
    headers = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"a header is written name=value, not {one!r}")
        headers[name] = value
    return headers


async def _client_id(mq: Client, text: str) -> int:
    key = queue_key(text)
    return key if isinstance(key, int) else await mq.client_id_of(key)


async def _put_all(puts: list[asyncio.Future[int]]) -> int:
    """Return the number of confirmed puts; raise the first failure if there is one."""
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return len(outcomes)


def get(
    queue: QueueArgument,
    order: Annotated[
        ReadOrder,
        typer.Option(help="Take the oldest message first, or the one with the highest priority."),
    ] = ReadOrder.OLDEST,
    sender: Annotated[
        str | None, typer.Option(help="Take only messages of this sender, given by name or #id.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Take only the reply to the request with this context.")
    ] = None,
    wait: Annotated[
        float, duration_option("Wait this long for a message, such as 5s. [default: no wait]")
    ] = 0.0,
    count: Annotated[
        int,
        typer.Option(
            min=0, help="Number of messages to take; 0 takes messages until the queue is empty."
        ),
    ] = 1,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack", help="Acknowledge each message, or return it to the queue afterwards."
        ),
    ] = True,
    lease: Annotated[
        float, duration_option("Lease of a message that is not acknowledged. [default: 60s]")
    ] = _LEASE_S,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Print exactly the bytes of the payload, without a newline after them."
        ),
    ] = False,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Take messages and print them; with --json one object per line.

    A message is acknowledged after it is printed. The exit code is 3 if there was no message.

    Example: `tidegate get orders --count 0 --raw`
    """
    output = Output(json)

    async def take(mq: Client) -> int:
        taken = 0
        acknowledgements: list[asyncio.Task[None]] = []
        given_back: list[Message] = []
        try:
            while taken < count or count == 0:
                message = await mq.get(
                    queue_key(queue),
                    order=order.value,
                    sender=None if sender is None else await _client_id(mq, sender),
                    context=context,
                    wait=wait,
                    lease=lease,
                )
                print_message(message, output, raw)
                taken += 1
                if ack:
                    acknowledgements.append(asyncio.create_task(message.ack_confirmed()))
                else:
                    given_back.append(message)
        except (NoMessagesInQueue, NoMessagesRetrieved) as nothing:
            if not taken:
                _say_nothing_there(nothing)
        finally:
            await asyncio.gather(*acknowledgements)
            for message in given_back:
                await message.release()
        return taken

    if not ask(url, take, "read-write"):
        raise typer.Exit(EMPTY_RESULT)


def print_message(message: Message, output: Output, raw: bool) -> None:
    if output.as_json:
        output.json(message_json(message), one_line=True)
        return
    if output.on_terminal and not raw:
        age = seconds(max(time.time() - message.arrived_at, 0.0))
        repeat = ", delivered before" if message.redelivered else ""
        output.line(
            f"{message.message_id}: from client {message.sender}, priority {message.priority}, "
            f"{age} old{repeat}",
            style="dim",
        )
        output.line(preview(message.payload, characters_max=None))
        return
    write(message.payload, newline=not raw)


def _say_nothing_there(notice: Notice) -> None:
    print(f"tidegate: {notice}", file=sys.stderr)


def peek(
    queue: QueueArgument,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum number of messages to show.")
    ] = 20,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show waiting messages without taking them.

    The exit code is 3 if the queue is empty.
    """
    output = Output(json)
    messages = ask(url, lambda mq: mq.browse(queue_key(queue), limit=limit))
    now = time.time()
    if json:
        output.json([message_json(message) for message in messages])
    elif messages:
        output.table(
            _PEEK_COLUMNS,
            [
                [
                    message.message_id,
                    max(now - message.arrived_at, 0.0),
                    message.priority,
                    message.sender,
                    message.receiver,
                    message.context,
                    len(message.payload),
                    preview(message.payload),
                ]
                for message in messages
            ],
        )
    if not messages:
        _say_nothing_there(NoMessagesInQueue(f"queue {queue} is empty"))
        raise typer.Exit(EMPTY_RESULT)


# The commands `topics`, `topic create|delete`, `publish`, `subscribe`, `unsubscribe`.


_TOPIC_COLUMNS = [
    Column("topic", style="bold"),
    Column("queue"),
    Column("filter"),
    Column("durable", shown=yes_no, spare=True),
]

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]

topic_app = typer.Typer(help="Create and delete topics.", no_args_is_help=True)


def register_topics(app: typer.Typer) -> None:
    app.command("topics")(topics)
    app.add_typer(topic_app, name="topic")
    app.command("publish")(publish)
    app.command("subscribe")(subscribe)
    app.command("unsubscribe")(unsubscribe)


def topics(url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """List the topics with their subscriptions."""
    output = Output(json)
    found: list[TopicInfo] = ask(url, lambda mq: mq.topics())
    if json:
        output.json([_as_json(topic) for topic in found])
    elif found or not output.on_terminal:
        output.table(_TOPIC_COLUMNS, [row for topic in found for row in _rows(topic)])
    else:
        output.line("there are no topics yet; `tidegate topic create NAME` makes one", style="dim")


def _as_json(topic: TopicInfo) -> dict[str, object]:
    return {
        "topic_id": topic.topic_id,
        "topic": topic.name,
        "subscriptions": [
            {
                "queue_id": each.queue_id,
                "queue": each.queue,
                "filter": each.filter or {},
                "durable": each.durable,
            }
            for each in topic.subscriptions
        ],
    }


def _rows(topic: TopicInfo) -> list[list[Cell]]:
    if not topic.subscriptions:
        return [[topic.name, None, None, None]]
    return [
        [topic.name, each.queue, _filter_text(each.filter), each.durable]
        for each in topic.subscriptions
    ]


def _filter_text(header_filter: Filter | None) -> str | None:
    """Return a filter as written on the command line."""
    if not header_filter:
        return None
    return " ".join(
        f"{name}={value}"
        for name, wanted in header_filter.items()
        for value in ([wanted] if isinstance(wanted, str) else wanted)
    )


@topic_app.command("create")
def create_topic(
    name: TopicArgument,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the topic already exists.")
    ] = False,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Create a topic."""
    output = Output(json)
    topic = ask(url, lambda mq: mq.create_topic(name, exist_ok=exist_ok), "read-write")
    if json:
        output.json(_as_json(topic))
    else:
        output.line(f"topic {topic.name} has id {topic.topic_id}")


@topic_app.command("delete")
def delete_topic(name: TopicArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """Delete a topic; its subscribed queues remain."""
    output = Output(json)
    ask(url, lambda mq: mq.delete_topic(name), "read-write")
    if json:
        output.json({"deleted": name})
    else:
        output.line(f"topic {name} is deleted")


def publish(
    topic: TopicArgument,
    payload: PayloadArgument = None,
    whole: WholeOption = False,
    priority: PriorityOption = PRIORITY_DEFAULT,
    content_type: ContentTypeOption = None,
    header: HeaderOption = None,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Publish a message, or each line of stdin, to all matching subscriptions of a topic.

    Example: `tidegate publish prices 17.5 --header region=eu`
    """
    output = Output(json)
    headers = headers_of(header or []) or None
    lone = lone_payload(payload, whole)
    if lone is None and sys.stdin.isatty():
        print("one message per line, Ctrl-D ends", file=sys.stderr)

    async def work(mq: Client) -> tuple[int, int]:
        def publish_one(data: bytes) -> asyncio.Future[int]:
            return mq.publish(
                topic, data, priority=priority, content_type=content_type, headers=headers
            )

        if lone is not None:
            return 1, await publish_one(lone)
        messages = deliveries = 0
        async for lines in stdin_lines():
            counts = await asyncio.gather(*(publish_one(line) for line in lines))
            messages += len(counts)
            deliveries += sum(counts)
        return messages, deliveries

    messages, deliveries = ask(url, work, "read-write")
    if json:
        output.json({"topic": topic, "messages": messages, "stored": deliveries})
    else:
        output.line(f"{messages} published, {deliveries} stored in subscriptions")


def subscribe(
    topic: TopicArgument,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="Queue that receives the messages; it is created if it does not exist. "
            "Without a queue, messages are printed until Ctrl-C.",
        ),
    ] = None,
    header_filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="Receive only messages with this header, such as region=eu; may be "
            "repeated. Every named header must match one of its values.",
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            min=0, help="Without a queue, exit after this number of messages; 0 means no limit."
        ),
    ] = 0,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Subscribe a queue to a topic; without a queue, print the messages as they come.

    The subscription gets messages published from now on.

    Example: `tidegate subscribe prices prices-eu --filter region=eu`
    """
    output = Output(json)
    wanted = _filter(header_filter or [])
    if queue is None:
        ask(url, lambda mq: _follow(mq, topic, wanted, count, output), "read-write")
        return
    made: QueueInfo = ask(
        url, lambda mq: mq.subscribe_to(topic, queue, filter=wanted), "read-write"
    )
    if json:
        output.json(
            {
                "topic": topic,
                "queue_id": made.queue_id,
                "queue": made.name,
                "filter": wanted or {},
            }
        )
    else:
        output.line(f"queue {made.name} has what is published to {topic} from now on")


async def _follow(
    mq: Client, topic: str, wanted: Filter | None, count: int, output: Output
) -> None:
    """Print messages from a transient queue that ends with this connection."""
    queue = f"{topic}.{secrets.token_hex(4)}"
    await mq.subscribe_to(topic, queue, filter=wanted, durable=False)
    if not output.as_json:
        print(f"waiting for what is published to {topic}", file=sys.stderr, flush=True)
    async with mq.subscribe(queue) as subscription:
        seen = 0
        async for message in subscription:
            print_message(message, output, False)
            message.ack()
            seen += 1
            if seen == count:
                return


def _filter(given: list[str]) -> Filter | None:
    values: dict[str, list[str]] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"a filter is written name=value, not {one!r}")
        values.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()} or None


def unsubscribe(
    topic: TopicArgument,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """End the subscription of a queue; the queue and its messages remain."""
    output = Output(json)
    ask(url, lambda mq: mq.unsubscribe_from(topic, queue), "read-write")
    if json:
        output.json({"topic": topic, "unsubscribed": queue})
    else:
        output.line(f"queue {queue} gets nothing more of {topic}")
