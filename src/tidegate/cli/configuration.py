"""The command `tidegate config`."""

from __future__ import annotations

import json as standard_json
import os
import re
from typing import Any

import typer

from tidegate.cli.output import JsonOption, Output
from tidegate.cli.settings.document import as_document
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the settings in effect as TOML, without secrets.

    They come from the defaults, the settings file and the environment, in that order.

    Example: `TIDEGATE_NODE__PORT=7500 tidegate config`
    """
    output = Output(json)
    document = as_document(load_settings(config, os.environ))
    if json:
        output.json(document)
        return
    for number, (section, keys) in enumerate(document.items()):
        if number:
            output.line("")
        output.line(f"[{_title(section)}]", style="bold")
        for key, value in keys.items():
            if value is None:
                output.line(f"# {key} is not set", style="dim")
            else:
                # Spark's properties have dots in their names.
                output.line(f"{_toml(key) if '.' in key else key} = {_toml(value)}")


def _title(section: str) -> str:
    """Return the title of a section, with the queue name quoted where TOML needs it."""
    head, dot, name = section.partition(".")
    return f"{head}.{_toml(name)}" if dot and not _BARE.fullmatch(name) else section


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    # JSON texts, numbers and lists of texts are valid TOML, too.
    return standard_json.dumps(value, ensure_ascii=False)
