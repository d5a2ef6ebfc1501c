"""A command that is imported alone is the one that stands among all of them."""

from __future__ import annotations

import tomllib
from importlib import import_module
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from places import ROOT

from tidegate.cli import COMMANDS, EXTRAS, added_commands, missing_package_text, module_of
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
    for command, place in added_commands():
        made = new_app()
        module, register = place.split(":")
        getattr(import_module(module), register)(made)
        assert module_of([command]) == place
        alone |= commands_of(made)

    assert alone == commands_of(app)


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["pt"], ["-h", "put"]])
def test_where_no_command_is_named_first_all_are_there(words: list[str]) -> None:
    assert module_of(words) is None
    assert module_of(["put", *words]) == "tidegate.cli.messages:register"


def test_the_lab_adds_its_commands() -> None:
    added = dict(added_commands())
    assert added["bench"] == "tidegate_lab.commands:register_bench"
    assert added["lab"] == "tidegate_lab.commands:register_lab"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pyarrow.fs", "this needs the package pyarrow: pip install 'tidegate[node]'"),
        ("typer", "this needs the package typer: pip install 'tidegate[cli]'"),
        ("another", None),
        (None, None),
    ],
)
def test_a_missing_package_is_said_with_its_extra(module: str | None, text: str | None) -> None:
    assert missing_package_text(ModuleNotFoundError(name=module)) == text


def test_each_extra_that_is_named_installs_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    distributions = {"yaml": "pyyaml"}
    for extra, packages in EXTRAS.items():
        names = {Requirement(one).name for one in extras[extra]}
        for package in packages:
            assert distributions.get(package, package.replace("_", "-")) in names
