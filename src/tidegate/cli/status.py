"""The overview on a terminal: attention first, then a light for each service, then decisions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.figures import count, seconds
from tidegate.cli.glance import Glance
from tidegate.cli.output import Cell, Column, terminal_table
from tidegate.console.model import Kind, Light, ServiceRow
from tidegate.core.fleet import FleetInfo
from tidegate.core.harmless import harmless
from tidegate.core.rule_words import in_words
from tidegate.core.steering import PERSON, Decision
from tidegate.core.steering_words import sentence

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


def cells(row: ServiceRow, prefetch: int | None) -> list[Cell]:
    """Return the cells of one service."""
    return [
        row.name,
        None if row.light is Light.NONE else row.light.value,
        row.budget_left,
        row.in_per_s,
        row.out_per_s,
        row.waiting,
        row.oldest_age_s,
        replicas_told(row),
        prefetch,
        row.consumers if row.kind is Kind.QUEUE else None,
    ]


def replicas_told(row: ServiceRow) -> str:
    """Return the replicas as `3`, or as `3→4` while another number is wanted."""
    is_so = row.replicas == row.replicas_wanted
    return str(row.replicas) if is_so else f"{row.replicas}→{row.replicas_wanted}"


def screen(glance: Glance, width: int, height: int, note: str = "") -> RenderableType:
    """Return the whole screen; `note` appears below the line of attention."""
    above = [head(glance), *attention_lines(glance)]
    complaints = [] if glance.lost else glance.overview.complaints
    above += [Text(harmless(one), style="dim") for one in (*complaints, note) if one]
    below = decision_lines(glance.decisions[:DECISIONS_SHOWN], width)
    beside = sum(_rows_of(one, width) for one in above) + len(below) + _ROWS_BESIDE
    services = service_table(glance, width, max(height - beside, _SERVICES_MIN))
    return Group(*above, Text(), services, *([Text(), *below] if below else []))


def _rows_of(text: Text, width: int) -> int:
    """Return the number of terminal rows that a wrapped text takes."""
    return max(len(textwrap.wrap(text.plain, width)), 1)


def head(glance: Glance) -> Text:
    overview = glance.overview
    at = datetime.fromtimestamp(overview.at).astimezone().strftime("%H:%M:%S")
    nodes = "1 node" if overview.nodes == 1 else f"{overview.nodes} nodes"
    return Text.assemble(
        ("Tidegate", "bold"), f"  {at}  {nodes}; ", (fleet_told(glance.fleet), "dim")
    )


def fleet_told(fleet: FleetInfo) -> str:
    """Return the numbers of machines by state, as text."""
    if not fleet.machines:
        return "no machines"
    states = [one.state.value for one in fleet.machines]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"machines: {counted}"


def attention_lines(glance: Glance) -> list[Text]:
    """Return the most urgent problem and the advice for it."""
    if glance.lost:
        return [Text(f"connection lost: {harmless(glance.lost)}", style="bold red")]
    attention = glance.overview.attention
    if attention is None:
        return [Text("all is well", style="green")]
    lines = [Text(harmless(attention.text), style=COLOURS.get(attention.light, "yellow"))]
    if attention.advice:
        lines.append(Text(harmless(attention.advice), style="dim"))
    return lines


def service_table(glance: Glance, width: int, rows: int) -> RenderableType:
    """Return a table of as many services as fit, the most urgent first."""
    if not glance.rows:
        return Text("there are no queues and no services yet", style="dim")
    found = [cells(row, glance.prefetch.get(row.name)) for row in glance.rows[:rows]]
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
        line = Text(harmless(decided(one)), style="dim" if one.carried_out else "yellow")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def decided(decision: Decision) -> str:
    """Return a decision as text: time, subject, action and rule."""
    at = datetime.fromtimestamp(decision.at).astimezone().strftime("%H:%M:%S")
    about = decision.service.removeprefix("#http/").lstrip("#")
    done = ", ".join(map(sentence, decision.actions)) or decision.outcome or decision.reason
    rule = decision.by if decision.law == PERSON and decision.by else in_words(decision.rule)
    word = "" if decision.carried_out else "wanted: "
    return f"{at} {about}: {word}{done} ({rule})"


def as_json(glance: Glance) -> dict[str, object]:
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
    name = harmless(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
