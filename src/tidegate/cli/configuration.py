"""`tidegate config`: the settings that hold, from defaults, file and environment together."""

from __future__ import annotations

import json as standard_json
import os
from typing import Any

import typer

from tidegate.cli.output import JsonOption, Output
from tidegate.cli.serving import ConfigOption
from tidegate.cli.settings import as_document, load_settings


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the settings that hold, as TOML, without secrets."""
    output = Output(json)
    document = as_document(load_settings(config, os.environ))
    if json:
        output.json(document)
        return
    for number, (section, keys) in enumerate(document.items()):
        if number:
            output.line("")
        output.line(f"[{section}]", style="bold")
        for key, value in keys.items():
            if value is None:
                output.line(f"# {key} is not set", style="dim")
            else:
                # Spark's properties have dots in their names.
                output.line(f"{_toml(key) if '.' in key else key} = {_toml(value)}")


def _toml(value: Any) -> str:
    # JSON's texts, numbers and lists of texts are TOML's as well.
    return standard_json.dumps(value, ensure_ascii=False)
