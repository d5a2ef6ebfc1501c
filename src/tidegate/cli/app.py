"""The commands, one module each group. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys

import typer

from tidegate.cli import serving
from tidegate.core.errors import TidegateError

app = typer.Typer(
    name="tidegate",
    help="A message queue that measures itself: durable, confirmed, fast, on PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
serving.register(app)


def main() -> None:
    """Run a command; an error of ours is one sentence and exit code 1."""
    try:
        app()
    except TidegateError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
