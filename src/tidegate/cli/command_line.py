"""The root of the command line: global options, and error messages with exit codes."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from tidegate.core.errors import CallerError, InvalidValue, TidegateError

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
        print(f"tidegate: {_error_text(error)}", file=sys.stderr)
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
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def _error_text(error: TidegateError) -> str:
    from tidegate.agreements.document import AgreementInvalid
    from tidegate.cli.output import MeasurementFailed
    from tidegate.cli.settings import SettingsInvalid

    # Problems of settings and agreements are one per line, and a failed measurement has several
    # lines. Any other error is printed on one line.
    if isinstance(error, SettingsInvalid | AgreementInvalid | MeasurementFailed):
        return str(error)
    return _LINE_END.sub(" ", str(error))


# The exit codes of all commands; docs/reference/commands.md has a table generated from here.
#
# Exit code 2 means that the input is wrong, and the same command will fail again. Exit code 1 means
# that the input is valid but the command failed, or that the answer is negative.


FAILED = 1
# Typer uses the same code for an invalid command line.
USAGE_ERROR = 2
EMPTY_RESULT = 3
INTERRUPTED = 130

_MEANINGS = {
    0: "The command succeeded.",
    FAILED: "The input is valid, but the command failed or its answer is negative: "
    "no node answers, the named object does not exist, a right is missing, "
    "an agreement is breached, or a check found problems.",
    USAGE_ERROR: "The input is invalid: the command line, a value in it, the settings, an "
    "agreement, or an application that cannot be imported. The same command "
    "fails again.",
    EMPTY_RESULT: "There is no result yet: no message, no hosted service, or no learned model.",
    INTERRUPTED: "Ctrl-C interrupted the command.",
}


class NotFound(CallerError):
    """The named object does not exist at present; the name itself is valid."""

    name = "NO_SUCH"


class NotWritten(TidegateError):
    """A file could not be written."""

    name = "NOT_WRITTEN"


def exit_code_of(error: TidegateError) -> int:
    """Return the exit code for an error."""
    from tidegate.agreements.document import AgreementInvalid
    from tidegate.cli.settings import SettingsInvalid
    from tidegate.fleet.processes import StartRefused

    is_wrongly_asked = (
        isinstance(error, SettingsInvalid | AgreementInvalid | StartRefused)
        # Subclasses of InvalidValue report conditions found at run time, and not invalid input.
        or type(error) is InvalidValue
    )
    return USAGE_ERROR if is_wrongly_asked else FAILED


def exit_code_table() -> str:
    """Return a Markdown table of the exit codes, for the docs."""
    rows = [f"| {code} | {meaning} |" for code, meaning in _MEANINGS.items()]
    return "\n".join(["| exit code | |", "|---|---|", *rows])
