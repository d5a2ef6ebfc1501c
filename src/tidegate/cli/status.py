"""The live stats as tables of nodes, queues and consumers."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.options import (
    DEFAULT,
    ConfigOption,
    UrlOption,
    ask,
    check_is_node,
    duration_option,
    queue_key,
    some_duration_s,
)
from tidegate.cli.output import Cell, Column, JsonOption, Output, terminal_table
from tidegate.cli.settings import Settings, load_settings
from tidegate.cli.wiring import StoreDataOption, StoreOption, open_store, running_stores
from tidegate.client.connect import connect
from tidegate.console.schemas import Kind, Light, Overview, ServiceRow
from tidegate.console.watch import UserConnection
from tidegate.core.decisions import OVERRIDE_LAW, Decision, format_action, format_rule
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.machines import FleetInfo
from tidegate.core.services import decision_subject
from tidegate.core.text import count, escape_control_characters, milliseconds, seconds, size, yes_no
from tidegate.core.text import count as counted
from tidegate.core.topology import logical_name

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.storage.postgres.store import PostgresStore
    from tidegate.telemetry.stats import ClusterStats, ConsumerStats, QueueStats


# The commands `status`, `ping` and `nodes`.


_MEMBERSHIP_COLUMNS = [
    Column("id", right=True, style="dim"),
    Column("node", style="bold"),
    Column("address"),
    Column("alive", shown=yes_no),
    Column("queues", shown=counted, right=True),
]
_RETRY_S = 0.1


def register_status(app: typer.Typer) -> None:
    app.command("status")(show_status)
    app.command("ping")(ping)
    app.command("nodes")(list_nodes)


def show_status(
    queue: Annotated[
        str | None, typer.Option(help="Show only this queue, given by name or #id.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the output until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        duration_option("Time between two refreshes with --watch. [default: 1s]", some_duration_s),
    ] = 1.0,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show nodes, queues and consumers with their live rates.

    Example: `tidegate status --queue orders --watch`
    """
    output = Output(json)
    chosen = None if queue is None else queue_key(queue)

    def show(cluster: ClusterStats) -> None:
        if json:
            output.json(cluster, one_line=watch)
        else:
            for title, columns, rows in status_tables(cluster):
                output.table(columns, rows, title=title)

    async def look(mq: Client) -> None:
        if not watch:
            show(await mq.stats(chosen))
        elif output.on_terminal:
            await _watch_live(mq, output, chosen, max(every, _RETRY_S))
        else:
            while True:
                show(await mq.stats(chosen))
                await asyncio.sleep(max(every, _RETRY_S))

    ask(url, look)


async def _watch_live(mq: Client, output: Output, queue: str | int | None, every_s: float) -> None:
    from rich.live import Live

    with Live(console=output.console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(status_screen(await mq.stats(queue), output.console.width), refresh=True)
            await asyncio.sleep(every_s)


def ping(
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, help="Number of round trips to measure.")
    ] = 1,
    wait: Annotated[
        float, duration_option("Wait this long for a node to start. [default: no wait]")
    ] = 0.0,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Measure the round trip to a node.

    Example: `tidegate ping --wait 30s` waits for a node to start.
    """
    output = Output(json)

    async def measure(mq: Client) -> list[float]:
        return [await mq.ping() for _ in range(count)]

    deadline = time.monotonic() + wait
    while True:
        try:
            rounds_s = ask(url, measure)
            break
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)
    rounds_ms = [1e3 * one for one in rounds_s]
    if json:
        output.json({"url": url, "round_trip_ms": [round(one, 3) for one in rounds_ms]})
        return
    median = milliseconds(statistics.median(rounds_ms))
    spread = f" (median of {count}, at most {milliseconds(max(rounds_ms))})" if count > 1 else ""
    output.line(f"{url} answers in {median}{spread}")


def list_nodes(url: UrlOption = DEFAULT, json: JsonOption = False) -> None:
    """List the nodes that share the store."""
    output = Output(json)
    found = ask(url, lambda mq: mq.members())
    rows: list[list[Cell]] = [
        [one.member_id, one.name, one.address, one.alive, one.queues] for one in found
    ]
    if json:
        names = ["member_id", "name", "address", "alive", "queues"]
        output.json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table(_MEMBERSHIP_COLUMNS, rows)


TableParts = tuple[str, Sequence[Column], list[list[Cell]]]

_NODES = [
    Column("id", right=True, style="dim"),
    Column("node", style="bold"),
    Column("address"),
    Column("up", shown=seconds, right=True, spare=True),
    Column("connections", shown=count, right=True, spare=True),
    Column("memory", shown=size, right=True),
    Column("of it waiting", shown=size, right=True, spare=True),
    Column("commits", shown=count, right=True, spare=True),
    Column("per commit", shown=lambda figure: f"{figure:.1f}", right=True, spare=True),
    Column("commit p50", shown=milliseconds, right=True, spare=True),
    Column("commit p99", shown=milliseconds, right=True, spare=True),
    Column("rows recorded", shown=count, right=True, spare=True),
    Column("rows dropped", shown=count, right=True, spare=True),
    Column("metrics", spare=True),
]
_QUEUES = [
    Column("queue", style="bold"),
    Column("node", spare=True),
    Column("in/s", shown=count, right=True),
    Column("out/s", shown=count, right=True),
    Column("acked/s", shown=count, right=True, spare=True),
    Column("waiting", shown=count, right=True),
    Column("unacked", shown=count, right=True),
    Column("oldest", shown=seconds, right=True),
    Column("wait p50", shown=milliseconds, right=True, spare=True),
    Column("wait p99", shown=milliseconds, right=True),
    Column("put in all", shown=count, right=True, spare=True),
    Column("redelivered", shown=count, right=True, spare=True),
    Column("delayed", shown=count, right=True, spare=True),
    Column("dead", shown=count, right=True, spare=True),
    Column("expired", shown=count, right=True, spare=True),
    Column("consumers", shown=count, right=True),
    Column("prefetch goal", spare=True),
]
_CONSUMERS = [
    Column("consumer", style="bold"),
    Column("number", right=True, style="dim", spare=True),
    Column("queue"),
    Column("prefetch", shown=count, right=True),
    Column("steered", spare=True),
    Column("unacked", shown=count, right=True),
    Column("out/s", shown=count, right=True),
    Column("acked/s", shown=count, right=True, spare=True),
    Column("acked in all", shown=count, right=True, spare=True),
    Column("service p50", shown=milliseconds, right=True),
    Column("service p99", shown=milliseconds, right=True, spare=True),
]


def status_tables(cluster: ClusterStats) -> list[TableParts]:
    """Return title, columns and rows of each table that has rows."""
    parts: list[TableParts] = [
        ("Nodes", _NODES, _node_rows(cluster)),
        ("Queues", _QUEUES, _queue_rows(cluster)),
        ("Consumers", _CONSUMERS, _consumer_rows(cluster)),
    ]
    return [part for part in parts if part[2]]


def status_screen(cluster: ClusterStats, width: int) -> RenderableType:
    """Return the tables of the status, one below the other, for a live view."""
    parts = status_tables(cluster)
    return Group(
        *(terminal_table(columns, rows, title, width=width) for title, columns, rows in parts)
    )


def _node_rows(cluster: ClusterStats) -> list[list[Cell]]:
    return [
        [
            node.member_id,
            node.name,
            node.address,
            node.uptime_s,
            node.connections,
            node.process_memory_bytes,
            node.memory_resident_bytes,
            node.commits,
            node.messages_per_commit,
            node.commit.p50_ms,
            node.commit.p99_ms,
            node.rows_recorded,
            node.rows_dropped,
            node.metrics_address,
        ]
        for node in cluster.nodes
    ]


def _queue_rows(cluster: ClusterStats) -> list[list[Cell]]:
    # List the replicas below their logical queue, in numeric order.
    return [
        [
            f"{_title(queue)} (paused)" if queue.paused else _title(queue),
            node.name,
            queue.put_per_s,
            queue.delivered_per_s,
            queue.acked_per_s,
            queue.waiting,
            queue.unacknowledged,
            queue.oldest_age_s,
            queue.wait.p50_ms,
            queue.wait.p99_ms,
            queue.put,
            queue.redelivered,
            queue.delayed,
            queue.dead_lettered,
            queue.expired,
            len(queue.consumers),
            queue.prefetch_goal or None,
        ]
        for node, queue in sorted(
            ((node, queue) for node in cluster.nodes for queue in node.queues),
            key=lambda served: by_name(served[1].name),
        )
    ]


def _title(queue: QueueStats) -> str:
    """Return a queue's name as errors give it: `orders, replica 2`."""
    if not queue.alias_id:
        return queue.name
    logical, number = by_name(queue.name)
    return f"{logical}, replica {number}"


def by_name(name: str) -> tuple[str, int]:
    """Return the sort key of a queue: the logical queue, and the number of the replica."""
    logical = logical_name(name)
    return logical, int(name[len(logical) + 1 :] or 0)


def _steered(consumer: ConsumerStats) -> str | None:
    """Return how the prefetch is controlled; None if the consumer sets it itself."""
    if consumer.trial_by:
        return f"tried out by {consumer.trial_by}"
    if not consumer.control:
        return None
    step = consumer.control[-1]
    target = "" if step.target_per_s is None else f" to {step.target_per_s:.0f}/s"
    limit = f", at its {step.saturated} limit" if step.saturated else ""
    return f"{step.mode}{target}{limit}"


def _consumer_rows(cluster: ClusterStats) -> list[list[Cell]]:
    return [
        [
            consumer.client_name,
            consumer.consumer,
            _title(queue),
            consumer.prefetch,
            _steered(consumer),
            consumer.unacknowledged,
            consumer.delivered_per_s,
            consumer.acked_per_s,
            consumer.acked,
            consumer.service.p50_ms,
            consumer.service.p99_ms,
        ]
        for node in cluster.nodes
        for queue in node.queues
        for consumer in queue.consumers
    ]


# The command `tidegate top`: an overview of all services in a terminal, until Ctrl-C.
#
# A node provides live stats, and the store provides the status of agreements. If the connection is
# lost, the screen keeps the last data with a notice, and the client reconnects.


Show = Callable[["OverviewRow"], None]


def register_top(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the state once, then exit.")] = False,
    every: Annotated[
        float,
        duration_option("Time between two refreshes, 1s or longer. [default: 1s]", some_duration_s),
    ] = 1.0,
    url: UrlOption = DEFAULT,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every service with its agreement, rates and replicas; urgent ones come first.

    Agreements and HTTP services are read from the store, and all other data from a node.
    """
    check_is_node(url)
    output = Output(json)
    stores, note = stores_of(store, data, load_settings(config, os.environ))
    asyncio.run(_poll(output, url, stores, note, None if once else every))


def stores_of(store: str | None, data: Path | None, settings: Settings) -> tuple[list[str], str]:
    """Return the stores with agreements, or none with a note if no store was named."""
    try:
        return running_stores(store, data, settings), ""
    except Unavailable:
        # A user who watches a node on another computer may have no access to its store.
        if store or data:
            raise
        return [], "agreements are not shown: name the store with --store URL or --data FOLDER"


async def _poll(
    output: Output, url: str, stores: list[str], note: str, every_s: float | None
) -> None:
    if every_s is None or not output.on_terminal:
        await watched(url, stores, every_s, _printed(output, note))
        return
    from rich.live import Live

    with Live(console=output.console, screen=True, auto_refresh=False) as live:

        def draw(glance: OverviewRow) -> None:
            size = output.console.size
            live.update(overview_screen(glance, size.width, size.height, note), refresh=True)

        await watched(url, stores, every_s, draw)


async def watched(url: str, stores: list[str], every_s: float | None, show: Show) -> None:
    """Poll and show the overview, once if `every_s` is None, else for ever."""

    # A first connection that fails is a wrong address and raises; a later failure is an outage.
    async with overview_poller(url, stores) as looking:
        while True:
            began = time.monotonic()
            show(await looking.poll())
            if every_s is None:
                return
            await asyncio.sleep(max(every_s - (time.monotonic() - began), 0.0))


def _printed(output: Output, note: str) -> Show:
    """Return a function that prints one overview to a pipe, or once to a terminal."""

    was_lost = False

    def show(glance: OverviewRow) -> None:
        nonlocal was_lost
        if output.as_json:
            document = overview_json(glance)
            output.json(document | ({"note": note} if note else {}), one_line=True)
        elif output.on_terminal:
            size = output.console.size
            output.console.print(overview_screen(glance, size.width, 10_000, note))
        elif not glance.lost:
            _print(output, glance, note)
        if bool(glance.lost) != was_lost and not output.as_json:
            # Print the loss of the connection and its return once each, not every second.
            word = "connected again"
            if glance.lost:
                word = f"connection lost: {escape_control_characters(glance.lost)}"
            print(f"tidegate: {word}", file=sys.stderr, flush=True)
        was_lost = bool(glance.lost)

    return show


def _print(output: Output, glance: OverviewRow, note: str) -> None:

    attention = glance.overview.attention
    output.line(
        f"attention\t{'-' if attention is None else escape_control_characters(attention.text)}"
    )
    for complaint in filter(None, (*glance.overview.complaints, note)):
        output.line(f"note\t{escape_control_characters(complaint)}")
    output.table(
        COLUMNS,
        [overview_cells(row, glance.prefetch.get(row.name)) for row in glance.rows],
    )
    for decision in glance.decisions[:DECISIONS_SHOWN]:
        output.line(f"decided\t{escape_control_characters(format_decision_row(decision))}")


# The data of `tidegate top`: the console's overview, sorted by urgency, with recent decisions.
#
# `tidegate.console` decides on the status lights and on what needs attention. This module needs
# only
# the parts of the console that work without its web packages.


# How long a call waits for a reconnect before the connection counts as lost.
POLL_TIMEOUT_S = 2.0
# The number of services whose decisions are read, the most urgent first, and of decisions for each.
_EXPLAINED = 5
_DECISIONS = 4
_NEED = tuple(Light)


@dataclass(frozen=True)
class OverviewRow:
    """The overview of all services at one moment."""

    overview: Overview
    # The most urgent first.
    rows: Sequence[ServiceRow]
    # The sum of the prefetch of a queue's consumers, by queue.
    prefetch: dict[str, int]
    fleet: FleetInfo
    # The newest first.
    decisions: Sequence[Decision]
    # Why the data is out of date; empty if it is current.
    lost: str = ""


def by_need(overview: Overview) -> list[ServiceRow]:
    """Return the services by attention, then by status light, then by waiting messages."""
    first = None if overview.attention is None else overview.attention.service
    return sorted(
        overview.services,
        key=lambda row: (row.name != first, _NEED.index(row.light), -row.waiting, row.name),
    )


class OverviewPoller:
    """Polls the overview repeatedly, as the console does for one user."""

    def __init__(self, client: Client, person: UserConnection) -> None:
        self._client = client
        self._person = person

    @property
    def person(self) -> UserConnection:
        return self._person

    async def poll(self) -> OverviewRow:
        """Wait for the next snapshot of the console's watch, taken each second, and return it."""
        watch = self._person.watch
        await watch.next_snapshot()
        sight, overview = watch.snapshot, watch.overview
        rows = by_need(overview)
        lost = ""
        if sight.is_stale:
            outage = self._client.outage
            lost = str(outage) if outage is not None else "; ".join(overview.complaints)
        return OverviewRow(
            overview=overview,
            rows=rows,
            prefetch={
                name: held
                for name, parts in sight.parts.items()
                if (held := sum(part.prefetch for part in parts))
            },
            fleet=sight.fleet,
            decisions=[] if lost else await self._decisions(rows),
            lost=lost or ("no node answers" if sight.is_stale else ""),
        )

    async def _decisions(self, rows: Sequence[ServiceRow]) -> list[Decision]:
        found: list[Decision] = []
        steered = [row for row in rows if row.steering]
        try:
            found += await self._client.explain(None, count=_DECISIONS)
            for row in steered[:_EXPLAINED]:
                found += await self._about(row)
        except TidegateError:
            # A queue was just deleted, or the connection failed. The next poll reports that.
            return found
        return sorted(found, key=lambda one: -one.at)

    async def _about(self, row: ServiceRow) -> list[Decision]:
        if row.kind is Kind.QUEUE:
            return await self._client.explain(row.name, count=_DECISIONS)
        store = self._person.store
        if store is None:
            return []
        documents = await store.decisions(decision_subject(row.name), _DECISIONS)
        return [msgspec.json.decode(one, type=Decision) for one in documents]


@asynccontextmanager
async def overview_poller(url: str, stores: Sequence[str]) -> AsyncIterator[OverviewPoller]:
    """Connect to a node, and to a store if there is one, and provide a poller."""
    async with AsyncExitStack() as open_:
        client = await open_.enter_async_context(
            connect(url, mode="read-only", reconnect_s=POLL_TIMEOUT_S)
        )
        store = await open_.enter_async_context(open_store(stores)) if stores else None
        async with overview_poller_on(client, store) as found:
            yield found


@asynccontextmanager
async def overview_poller_on(
    client: Client, store: PostgresStore | None
) -> AsyncIterator[OverviewPoller]:
    """Provide a poller on an existing connection."""
    user, grants = await client.rights()
    person = UserConnection(client, user, grants, store)
    try:
        yield OverviewPoller(client, person)
    finally:
        await person.watch.close()


# The overview on a terminal: attention first, then a light for each service, then decisions.


COLOURS = {Light.MET: "green", Light.WARNED: "yellow", Light.BREACHED: "bold red"}
DECISIONS_SHOWN = 5
# Rows used besides the services: titles, the count of hidden services, and two empty lines.
_ROWS_BESIDE = 4
_SERVICES_MIN = 3
_NAME_MIN = 12
_CELL_PADDING = 2


@dataclass(frozen=True)
class LightColumn(Column):
    """A column of status lights in colour."""

    def on_terminal(self, cell: Cell) -> Text:
        if cell is None:
            return Text("–", style="dim")
        light = Light(str(cell))
        return Text.assemble(("● ", COLOURS.get(light, "dim")), light.value)


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}" if 0.0 < per_s < 9.95 else count(per_s)


def _part(part: float) -> str:
    return f"{100 * part:.3g} %"


COLUMNS = [
    Column("service", style="bold"),
    LightColumn("kept"),
    Column("budget", shown=_part, right=True, spare=True),
    Column("in/s", shown=_rate, right=True),
    Column("out/s", shown=_rate, right=True),
    Column("waiting", shown=count, right=True),
    Column("oldest", shown=seconds, right=True, spare=True),
    Column("replicas", right=True),
    Column("prefetch", shown=count, right=True, spare=True),
    Column("consumers", shown=count, right=True, spare=True),
]
# These columns are dropped before a name is cut.
_BEHIND_NAMES = ("prefetch", "consumers")


def overview_cells(row: ServiceRow, prefetch: int | None) -> list[Cell]:
    """Return the cells of one service."""
    return [
        row.name,
        None if row.light is Light.NONE else row.light.value,
        row.budget_left,
        row.in_per_s,
        row.out_per_s,
        row.waiting,
        row.oldest_age_s,
        format_replicas(row),
        prefetch,
        row.consumers if row.kind is Kind.QUEUE else None,
    ]


def format_replicas(row: ServiceRow) -> str:
    """Return the replicas as `3`, or as `3→4` while another number is wanted."""
    is_so = row.replicas == row.replicas_wanted
    return str(row.replicas) if is_so else f"{row.replicas}→{row.replicas_wanted}"


def overview_screen(glance: OverviewRow, width: int, height: int, note: str = "") -> RenderableType:
    """Return the whole screen; `note` appears below the line of attention."""
    above = [head(glance), *attention_lines(glance)]
    complaints = [] if glance.lost else glance.overview.complaints
    above += [
        Text(escape_control_characters(one), style="dim") for one in (*complaints, note) if one
    ]
    below = decision_lines(glance.decisions[:DECISIONS_SHOWN], width)
    beside = sum(_rows_of(one, width) for one in above) + len(below) + _ROWS_BESIDE
    services = service_table(glance, width, max(height - beside, _SERVICES_MIN))
    return Group(*above, Text(), services, *([Text(), *below] if below else []))


def _rows_of(text: Text, width: int) -> int:
    """Return the number of terminal rows that a wrapped text takes."""
    return max(len(textwrap.wrap(text.plain, width)), 1)


def head(glance: OverviewRow) -> Text:
    overview = glance.overview
    at = datetime.fromtimestamp(overview.at).astimezone().strftime("%H:%M:%S")
    nodes = "1 node" if overview.nodes == 1 else f"{overview.nodes} nodes"
    return Text.assemble(
        ("Tidegate", "bold"), f"  {at}  {nodes}; ", (format_fleet(glance.fleet), "dim")
    )


def format_fleet(fleet: FleetInfo) -> str:
    """Return the numbers of machines by state, as text."""
    if not fleet.machines:
        return "no machines"
    states = [one.state.value for one in fleet.machines]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"machines: {counted}"


def attention_lines(glance: OverviewRow) -> list[Text]:
    """Return the most urgent problem and the advice for it."""
    if glance.lost:
        return [
            Text(f"connection lost: {escape_control_characters(glance.lost)}", style="bold red")
        ]
    attention = glance.overview.attention
    if attention is None:
        return [Text("all is well", style="green")]
    lines = [
        Text(
            escape_control_characters(attention.text), style=COLOURS.get(attention.light, "yellow")
        )
    ]
    if attention.advice:
        lines.append(Text(escape_control_characters(attention.advice), style="dim"))
    return lines


def service_table(glance: OverviewRow, width: int, rows: int) -> RenderableType:
    """Return a table of as many services as fit, the most urgent first."""
    if not glance.rows:
        return Text("there are no queues and no services yet", style="dim")
    found = [overview_cells(row, glance.prefetch.get(row.name)) for row in glance.rows[:rows]]
    longest = _name_room(found, width)
    table: Table = terminal_table(
        COLUMNS, [[_cut(str(row[0]), longest), *row[1:]] for row in found], width=width
    )
    more = len(glance.rows) - rows
    if more <= 0:
        return table
    return Group(table, Text(f" and {more:,} more that need less", style="dim"))


def _name_room(rows: Sequence[Sequence[Cell]], width: int) -> int:
    """Return the width that the other columns leave for names."""
    others = sum(
        max(len(column.name), *(column.on_terminal(row[index]).cell_len for row in rows))
        + _CELL_PADDING
        for index, column in enumerate(COLUMNS)
        if index and column.name not in _BEHIND_NAMES
    )
    return max(width - others - _CELL_PADDING, _NAME_MIN)


def decision_lines(decisions: Sequence[Decision], width: int) -> list[Text]:
    """Return one line per decision."""
    lines = []
    for one in decisions:
        line = Text(
            escape_control_characters(format_decision_row(one)),
            style="dim" if one.carried_out else "yellow",
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def format_decision_row(decision: Decision) -> str:
    """Return a decision as text: time, subject, action and rule."""
    at = datetime.fromtimestamp(decision.at).astimezone().strftime("%H:%M:%S")
    about = decision.service.removeprefix("#http/").lstrip("#")
    done = ", ".join(map(format_action, decision.actions)) or decision.outcome or decision.reason
    rule = (
        decision.by if decision.law == OVERRIDE_LAW and decision.by else format_rule(decision.rule)
    )
    word = "" if decision.carried_out else "wanted: "
    return f"{at} {about}: {word}{done} ({rule})"


def overview_json(glance: OverviewRow) -> dict[str, object]:
    """Return the overview in the format of the console's API, with decisions and prefetch."""
    plain: dict[str, object] = msgspec.to_builtins(glance.overview)
    return plain | {
        "services": [
            msgspec.to_builtins(row) | {"prefetch": glance.prefetch.get(row.name)}
            for row in glance.rows
        ],
        "decisions": msgspec.to_builtins(list(glance.decisions)),
        "lost": glance.lost or None,
    }


def _cut(name: str, longest: int) -> str:
    # Escape before cutting, so that no escape sequence is cut in two.
    name = escape_control_characters(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
