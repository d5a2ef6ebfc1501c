"""The root of the command line: global options, and error messages with exit codes."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from tidegate.cli.exit_codes import INTERRUPTED, exit_code_of
from tidegate.core.errors import TidegateError

_LINE_END = re.compile(r"\s*\n\s*")


def new_app() -> typer.Typer:
    """Return the application without commands."""
    app = typer.Typer(
        name="tidegate",
        help="A message queue and an HTTP front door that keep the service level you declare.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Boxes are only for terminals. The mode "rich" would read [default: 5s] and tidegate[spark]
        # as markup and drop them.
        rich_markup_mode="markdown" if sys.stdout.isatty() and sys.stderr.isatty() else None,
    )
    app.callback()(_options)
    return app


def run(app: typer.Typer) -> None:
    """Run the application; report a `TidegateError` as one sentence with an exit code."""
    try:
        app()
    except TidegateError as error:
        print(f"tidegate: {_told(error)}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # If SIGINT arrives while CPython runs code from a string (as dataclasses do), it later ends
        # the process by that signal. Running another string clears this state.
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

    # Problems of settings and agreements are one per line, and a failed measurement has several
    # lines. Any other error is printed on one line.
    if isinstance(error, SettingsInvalid | AgreementInvalid | MeasurementFailed):
        return str(error)
    return _LINE_END.sub(" ", str(error))
