"""What the command is whichever part of it runs: its options, and how it says what went wrong."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from tidegate.cli.exit_codes import INTERRUPTED, exit_code_of
from tidegate.core.errors import TidegateError

_LINE_END = re.compile(r"\s*\n\s*")


def new_app() -> typer.Typer:
    """Without commands yet."""
    app = typer.Typer(
        name="tidegate",
        help="A message queue and an HTTP front door that keep the service level you declare.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Boxes are for people. Not "rich", which takes [default: 5s] and tidegate[spark] for styles
        # and leaves them out.
        rich_markup_mode="markdown" if sys.stdout.isatty() and sys.stderr.isatty() else None,
    )
    app.callback()(_options)
    return app


def run(app: typer.Typer) -> None:
    """Run a command; an error of ours is one sentence and its exit code."""
    try:
        app()
    except TidegateError as error:
        print(f"tidegate: {_told(error)}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # CPython remembers an interruption inside text that it runs as code (so dataclasses are
        # made) and would end the process by a signal in the end; running other text clears that.
        eval("0")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tidegate import __version__

        print(f"tidegate {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Which one.")
    ] = False,
) -> None: ...


def _told(error: TidegateError) -> str:
    from tidegate.agreement.document import AgreementInvalid
    from tidegate.cli.measuring import MeasurementFailed
    from tidegate.cli.settings.reader import SettingsInvalid

    # Complaints about settings and agreements are one a line, and a measurement may tell a long
    # story; anything else is one line, whoever worded it.
    if isinstance(error, SettingsInvalid | AgreementInvalid | MeasurementFailed):
        return str(error)
    return _LINE_END.sub(" ", str(error))
