"""The commands `move` and `prefetch`: changes by an administrator at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask, queue_key
from tidegate.cli.exit_codes import NoSuch
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.queues import QueueArgument

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.telemetry.numbers import ConsumerNumbers
    from tidegate.wire.packets.cluster import Member


def register(app: typer.Typer) -> None:
    app.command("move")(move)
    app.command("prefetch")(prefetch)


def move(
    queue: QueueArgument,
    member: Annotated[str, typer.Argument(metavar="NODE", help="Its id, name or address.")],
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Move a queue to another node, given by id, name or address (see `tidegate members`).

    Example: `tidegate move orders 2`
    """
    output = Output(json)

    async def give(mq: Client) -> Member:
        heir = _member_called(member, await mq.members())
        await mq.set_owner(queue_key(queue), heir.member_id)
        return heir

    heir = ask(url, give, "admin")
    if json:
        output.json({"queue": queue, "member_id": heir.member_id, "address": heir.address})
    else:
        output.line(f"queue {queue} is served by {heir.name} ({heir.address})")


def _member_called(text: str, members: list[Member]) -> Member:
    living = [member for member in members if member.alive]
    for found in living:
        if text in (str(found.member_id), found.name, found.address):
            return found
    known = ", ".join(f"{one.member_id} ({one.name})" for one in living)
    raise NoSuch(f"no living node is called {text}; there are {known}")


def prefetch(
    queue: QueueArgument,
    messages: Annotated[int, typer.Argument(min=1, help="Unacknowledged messages allowed.")],
    client: Annotated[
        str | None, typer.Option(help="Only consumers of this client, by name or id.")
    ] = None,
    consumer: Annotated[
        int | None, typer.Option(help="Only the consumer of this number of its connection.")
    ] = None,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Set the number of unacknowledged messages that the consumers of a queue may hold.

    Example: `tidegate prefetch orders 100 --client worker-1`
    """
    output = Output(json)

    async def change(mq: Client) -> list[ConsumerNumbers]:
        key = queue_key(queue)
        queue_id = await mq.queue_id(key)
        cluster = await mq.stats(key)
        chosen = [
            one
            for node in cluster.nodes
            for numbers in node.queues
            if numbers.queue_id == queue_id
            for one in numbers.consumers
            if (client is None or client in (one.client_name, str(one.client_id)))
            and (consumer is None or consumer == one.consumer)
        ]
        for one in chosen:
            await mq.set_consumer_prefetch(queue_id, one.client_id, one.consumer, messages)
        return chosen

    changed = ask(url, change, "admin")
    if not changed:
        raise NoSuch(f"queue {queue} has no such consumer; `tidegate status` lists them")
    if json:
        output.json(
            [
                {
                    "client_id": one.client_id,
                    "client": one.client_name,
                    "consumer": one.consumer,
                    "before": one.prefetch,
                    "prefetch": messages,
                }
                for one in changed
            ]
        )
    for one in changed if not json else []:
        output.line(
            f"{one.client_name}, consumer {one.consumer}: prefetch {one.prefetch} -> {messages}"
        )
