"""The commands `put`, `get` and `peek`.

`get` takes a message under a lease, prints it, and acknowledges it only after that. If the reader
of a pipe has ended, unread messages return to the queue.
"""

from __future__ import annotations

import asyncio
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask, duration_option, queue_key
from tidegate.cli.exit_codes import NOTHING_THERE
from tidegate.cli.figures import seconds
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.payload import as_json, preview, write
from tidegate.cli.queues import QueueArgument
from tidegate.cli.stdin import stdin_lines
from tidegate.core.errors import NoMessagesInQueue, NoMessagesRetrieved, Notice, TidegateError
from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.message import Message

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
    typer.Argument(metavar="PAYLOAD", help="Text; without it, or for -, lines of stdin."),
]
WholeOption = Annotated[
    bool, typer.Option("--whole", help="All of stdin is one message, byte for byte.")
]
PriorityOption = Annotated[
    int, typer.Option(min=PRIORITY_LOWEST, max=PRIORITY_HIGHEST, help="10 goes first.")
]
ContentTypeOption = Annotated[str | None, typer.Option(help="Such as application/json.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option(help="Name and value, as in region=eu; may be repeated.")
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
        str | None, typer.Option(help="Only for this client: its name, or #id.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Number that a reply carries back.")] = None,
    content_type: ContentTypeOption = None,
    header: HeaderOption = None,
    delay: Annotated[float | None, duration_option("Deliver it after, such as 30s.")] = None,
    ttl: Annotated[float | None, duration_option("Drop it after, such as 1h.")] = None,
    dedup_id: Annotated[
        str | None, typer.Option(help="Of messages with the same one, the first is stored.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="One of a group is in flight at a time, in order.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Capacity is shared over tenants.")] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the queue if there is none.")
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
    order: Annotated[ReadOrder, typer.Option(help="Which one comes first.")] = ReadOrder.OLDEST,
    sender: Annotated[
        str | None, typer.Option(help="Only from this client: its name, or #id.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Only the reply to the request of this context.")
    ] = None,
    wait: Annotated[
        float, duration_option("Wait for one, such as 5s. [default: not at all]")
    ] = 0.0,
    count: Annotated[
        int, typer.Option(min=0, help="How many to take; 0 takes until nothing is left.")
    ] = 1,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Take it for good, or put it back afterwards.")
    ] = True,
    lease: Annotated[
        float, duration_option("How long it stays ours unacknowledged. [default: 60s]")
    ] = _LEASE_S,
    raw: Annotated[
        bool, typer.Option("--raw", help="Exactly the payload's bytes, no newline after them.")
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
        raise typer.Exit(NOTHING_THERE)


def print_message(message: Message, output: Output, raw: bool) -> None:
    if output.as_json:
        output.json(as_json(message), one_line=True)
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
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 20,
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
        output.json([as_json(message) for message in messages])
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
        raise typer.Exit(NOTHING_THERE)
