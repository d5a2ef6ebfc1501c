"""The reference of all commands; docs/reference/commands.md is generated from here.

The texts are those of `--help`, read from the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from tidegate.cli.app import app


def commands() -> str:
    """Return the reference of all commands, in the order of `tidegate --help`."""
    root: Any = typer.main.get_command(app)
    return "\n".join(_pages(root, root.context_class(root, info_name="tidegate"))).rstrip()


def names() -> list[str]:
    """Return all command names; those in groups in full, such as `user add`."""
    root: Any = typer.main.get_command(app)
    return [
        context.command_path.partition(" ")[2]
        for command, context in _walked(root, root.context_class(root, info_name="tidegate"))
        if not hasattr(command, "commands")
    ]


def _pages(root: Any, context: Any) -> Iterator[str]:
    for command, inner in _walked(root, context):
        is_group = hasattr(command, "commands")
        yield f"### {inner.command_path}"
        if is_group:
            yield f"{_said(command.help)}\n"
            continue
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)])
        yield f"```\n{usage}\n```\n{_said(command.help)}\n"
        records = [
            record
            for parameter in command.get_params(inner)
            # The page replaces --help.
            if (record := parameter.get_help_record(inner)) and "--help" not in parameter.opts
        ]
        if records:
            yield "| | |\n|---|---|"
            yield from (f"| `{_name(name)}` | {_escaped(_line(says))} |" for name, says in records)
            yield ""


def _walked(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every command below a group, each group before its commands."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        inner = command.context_class(command, info_name=name, parent=context)
        yield command, inner
        if hasattr(command, "commands"):
            yield from _walked(command, inner)


def _said(text: str | None) -> str:
    """Return a docstring with each paragraph on one line."""
    paragraphs = (text or "").split("\n\n")
    return _escaped("\n\n".join(_line(one) for one in paragraphs))


def _name(text: str) -> str:
    """Return an option's name for a table cell; code in a cell cannot contain an escaped `|`."""
    return _line(text).replace(" range>", ">").replace("|", " or ")


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
