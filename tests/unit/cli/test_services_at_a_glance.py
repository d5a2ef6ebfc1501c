"""What `tidegate top` makes of the console's overview: its order, and what fits into 80 columns."""

from __future__ import annotations

import dataclasses
import io

import msgspec
import pytest
from rich.console import Console

from tidegate.cli.status import (
    OverviewRow,
    by_need,
    format_decision_row,
    overview_json,
    overview_screen,
)
from tidegate.console.schemas import Attention, Kind, Light, Overview, ServiceRow
from tidegate.core.decisions import OVERRIDE_LAW, AddReplica, Decision
from tidegate.core.machines import FleetInfo


def row(name: str, light: Light = Light.NONE, waiting: int = 0) -> ServiceRow:
    return ServiceRow(kind=Kind.QUEUE, name=name, light=light, waiting=waiting)


def glance(*rows: ServiceRow, attention: Attention | None = None, lost: str = "") -> OverviewRow:
    overview = Overview(at=0.0, attention=attention, services=list(rows), nodes=1)
    return OverviewRow(
        overview=overview,
        rows=by_need(overview),
        prefetch={"orders": 240},
        fleet=FleetInfo(leader=1),
        decisions=[],
        lost=lost,
    )


def shown(view: OverviewRow, width: int = 80, height: int = 24) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(overview_screen(view, width, height))
    return console.export_text()


def test_glance_lists_the_most_urgent_service_first() -> None:
    rows = [
        row("plain", waiting=9),
        row("met", Light.MET),
        row("breached", Light.BREACHED),
        row("idle"),
        row("lonely", waiting=3),
        row("warned", Light.WARNED),
    ]
    alone = Attention(light=Light.WARNED, service="lonely", kind=Kind.QUEUE, text="nobody consumes")

    found = glance(*rows, attention=alone).rows

    order = ["lonely", "breached", "warned", "met", "plain", "idle"]
    assert [one.name for one in found] == order


def test_at_80_columns_everything_that_counts_is_there() -> None:
    busy = ServiceRow(
        kind=Kind.QUEUE, name="orders", light=Light.WARNED, budget_left=0.973, in_per_s=1480.0,
        out_per_s=1190.0, waiting=2120, oldest_age_s=64.2, replicas=3, replicas_wanted=4,
    )  # fmt: skip

    text = shown(glance(busy, row("a-queue-with-quite-a-long-name-indeed.eu-west")))

    assert all(len(line) <= 80 for line in text.splitlines())
    for expected in (
        "● warned",
        "97.3 %",
        "1,480",
        "1,190",
        "2,120",
        "64.2 s",
        "3→4",
        "all is well",
    ):
        assert expected in text, text
    assert "…" in text
    assert "240" in shown(glance(busy)), "with short names there is room for the prefetch"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_five_hundred_services_leave_room_for_the_rest(width: int) -> None:
    """What needs attention wraps where the terminal is narrow, and the last decision is there."""
    attention = Attention(
        light=Light.BREACHED, service="q7", kind=Kind.QUEUE, text="q7 breaches " + 20 * "this and ",
        advice="Being done: nothing yet, since nothing that could be done would help",
    )  # fmt: skip
    view = glance(*(row(f"q{number}") for number in range(500)), attention=attention)
    decision = Decision(at=0.0, loop="queue", service="q7", law="load", rule="the last one")

    text = shown(dataclasses.replace(view, decisions=[decision] * 9), width)

    assert len(text.splitlines()) <= 24
    assert "more that need less" in text
    assert text.rstrip().endswith("(the last one)")


def test_on_a_narrow_terminal_no_cell_is_half_there() -> None:
    busy = ServiceRow(
        kind=Kind.QUEUE, name="orders-of-all-shops", light=Light.BREACHED, budget_left=-0.973,
        in_per_s=1480.0, out_per_s=1190.0, waiting=2120, oldest_age_s=64.2, replicas=3,
        replicas_wanted=4,
    )  # fmt: skip

    text = shown(glance(busy), width=60)

    assert all(len(line) <= 60 for line in text.splitlines())
    for expected in ("orders-of-a…", "● breached", "1,480", "1,190", "2,120", "3→4", "replicas"):
        assert expected in text, text
    assert text.count("…") == 1
    assert "orders-of-all-shops" in shown(glance(busy), width=200)


def test_without_any_queue_it_says_so() -> None:
    assert "there are no queues and no services yet" in shown(glance())


def test_texts_of_others_steer_no_terminal() -> None:
    nasty = "\x1b[2Jqueue"
    first = Attention(
        light=Light.BREACHED, service=nasty, kind=Kind.QUEUE, text="\x1b]0;t\x07", advice="\x9b2J"
    )
    for lost in ("", "\x1b[31mno\x9b2J"):
        view = glance(row(nasty, Light.BREACHED), attention=first, lost=lost)
        text = shown(view)
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert ("connection lost" in text) == bool(lost)
        # To a program it is as it is, quoted.
        assert b"\x1b" not in msgspec.json.encode(overview_json(view))


def test_a_decision_is_one_line() -> None:
    by_law = Decision(
        at=0.0, loop="queue", service="orders", law="agreement", rule="needed > replicas",
        actions=[AddReplica(2)],
    )  # fmt: skip
    by_hand = msgspec.structs.replace(by_law, law=OVERRIDE_LAW, by="ada")

    assert format_decision_row(by_law).endswith(
        "orders: 2 replicas more (more replicas are needed than there are)"
    )
    assert format_decision_row(by_hand).endswith("(ada)")
