"""A command that is imported alone is the one that stands among all of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import typer

from tidegate.cli import COMMANDS, module_of
from tidegate.cli.app import app
from tidegate.cli.command_line import new_app


def commands_of(made: typer.Typer) -> dict[str, set[str]]:
    """Each with the names of what it takes, or of the commands below it."""
    group: Any = typer.main.get_command(made)
    return {name: parts_of(command) for name, command in group.commands.items()}


def parts_of(command: Any) -> set[str]:
    below = getattr(command, "commands", {})
    return {*below, *(parameter.name for parameter in command.params)}


def test_each_command_is_in_the_module_that_is_imported_for_it() -> None:
    alone: dict[str, set[str]] = {}
    for place, commands in COMMANDS.items():
        made = new_app()
        module, register = place.split(":")
        getattr(import_module(module), register)(made)
        found = commands_of(made)
        assert set(found) == set(commands)
        alone |= found

    assert alone == commands_of(app)


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["pt"], ["-h", "put"]])
def test_where_no_command_is_named_first_all_are_there(words: list[str]) -> None:
    assert module_of(words) is None
    assert module_of(["put", *words]) == "tidegate.cli.messages:register"
