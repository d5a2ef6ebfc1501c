"""The page that says what shows what: its commands can be given, parts and files are there."""

from __future__ import annotations

import functools
import re
import shlex
from typing import Any

import pytest
import typer.main
from places import ROOT
from typer.core import TyperGroup

from tidegate.cli.app import app
from tidegate_lab.papers.elastic.run import ElasticOptions
from tidegate_lab.papers.elastic.simulated import SimulatedOptions
from tidegate_lab.papers.prefetch.run import PrefetchOptions
from tidegate_lab.papers.replicated.run import ReplicatedOptions
from tidegate_lab.papers.tapas.run import TapasOptions
from tidegate_lab.papers.telesto.run import TelestoOptions

PAGE = (ROOT / "docs" / "explanation" / "traceability.md").read_text()
COMMANDS = sorted(set(re.findall(r"`tidegate ([^`]+)`", PAGE)))
OPTIONS = {
    "telesto": TelestoOptions,
    "replicated-queues": ReplicatedOptions,
    "elastic-queues": ElasticOptions,
    "prefetch-control": PrefetchOptions,
    "tapas": TapasOptions,
}


@functools.cache
def everything() -> Any:
    """All commands. Putting them together takes longer than understanding all lines of the page."""
    return typer.main.get_command(app)


def understood(line: str) -> dict[str, Any]:
    """What the command would be given; it is not run."""
    command = everything()
    words = shlex.split(line)
    while isinstance(command, TyperGroup):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    # Commands without their arguments stand here as names.
    context = command.make_context(command.name, words, resilient_parsing=not words)
    return dict(context.params)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_can_be_given(line: str) -> None:
    given = understood(line)

    only = [part for part in str(given.get("only") or "").split(",") if part]
    if only and line.startswith("lab run"):
        options = SimulatedOptions if "--simulate" in line and "elastic" in line else None
        # Says which part is none.
        (options or OPTIONS[line.split()[2]])(only=only).experiments()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_part_of_an_experiment_is_on_the_page(name: str) -> None:
    shown = {
        part
        for line in COMMANDS
        if line.startswith(f"lab run {name} ")
        for part in str(understood(line)["only"]).split(",")
    }

    assert set(OPTIONS[name]().experiments()) <= shown


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", PAGE))

    assert len(named) > 50
    assert [one for one in sorted(named) if not (ROOT / one).is_file()] == []
