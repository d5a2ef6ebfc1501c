"""What others wrote is shown, and steers no terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from tidegate.cli.output import Column, Output, terminal_table

EVIL = "no\x1b]0;title\x07\x1b[2J\u009b31m\u202eway\tout\n"
SHOWN = r"no\x1b]0;title\x07\x1b[2J\x9b31m\u202eway\tout\n"


def test_a_cell_in_a_pipe_is_one_line_without_commands(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table([Column("id"), Column("error")], [(1, EVIL)])
    assert capsys.readouterr().out == f"id\terror\n1\t{SHOWN}\n"


def test_a_cell_on_a_terminal_holds_no_commands() -> None:
    console = Console(width=120, force_terminal=True, no_color=True)
    with console.capture() as drawn:
        console.print(terminal_table([Column("error")], [(EVIL,)], width=120))
    assert SHOWN in drawn.get()
    assert not set(drawn.get()) & set("\x07\u009b\u202e")
