"""The commands `topics`, `topic create|delete`, `publish`, `subscribe`, `unsubscribe`."""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask
from tidegate.cli.figures import yes_no
from tidegate.cli.messages import (
    ContentTypeOption,
    HeaderOption,
    PayloadArgument,
    PriorityOption,
    WholeOption,
    headers_of,
    lone_payload,
    print_message,
)
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.stdin import stdin_lines
from tidegate.core.model import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.core.model import QueueInfo
    from tidegate.core.topic import Filter, TopicInfo

_COLUMNS = [
    Column("topic", style="bold"),
    Column("queue"),
    Column("filter"),
    Column("durable", shown=yes_no, spare=True),
]

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]

topic_app = typer.Typer(help="Make and delete topics.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
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
        output.table(_COLUMNS, [row for topic in found for row in _rows(topic)])
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
def create(
    name: TopicArgument,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="It is fine if it exists already.")
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
def delete(name: TopicArgument, url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
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
            help="Queue that gets the messages, made if there is none; without it they are "
            "printed as they come, until Ctrl-C.",
        ),
    ] = None,
    header_filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="Only messages with this header, as in region=eu; may be repeated, and then all "
            "must match, or any of the values of one name.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(min=0, help="Without a queue: end after so many messages; 0 never ends.")
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
