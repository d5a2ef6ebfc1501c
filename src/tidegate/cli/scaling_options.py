"""Options that set how a queue scales, shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.asking import duration_text
from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import ScalingPolicy

PolicyOption = Annotated[
    ScalingPolicy | None, typer.Option(help="Which law says how many there are.")
]
MaxWaitOption = Annotated[
    str | None,
    typer.Option(parser=duration_text, metavar="DURATION", help="How long a message may wait."),
]
MinLoadOption = Annotated[
    float | None, typer.Option(help="Waiting messages per replica below which one goes.")
]
MaxLoadOption = Annotated[
    float | None, typer.Option(help="Waiting messages per replica above which one comes.")
]
AnyKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other key, such as cooldown_period=60s; may be repeated.",
    ),
]
RecommendOnlyOption = Annotated[
    bool, typer.Option("--recommend-only", help="Decide and explain, and change nothing.")
]
AgreementOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What it promises (TOML): judged, or obeyed; none: no more."),
]


def assignments(settings: list[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE` options by name; raise `InvalidValue` without an `=`."""
    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InvalidValue(f"{setting!r} is no setting: write {name}=VALUE")
        found[name.strip().replace("-", "_")] = text.strip()
    return found
