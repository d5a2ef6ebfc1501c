"""Options for the settings file and for metrics, shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file; default: tidegate.toml if there is one")
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="port of /metrics, 0 for a free one [default: 1000 above its own]",
    ),
]
