"""The exit codes of all commands; docs/reference/commands.md has a table generated from here.

Exit code 2 means that the input is wrong, and the same command will fail again. Exit code 1 means
that the input is valid but the command failed, or that the answer is negative.
"""

from __future__ import annotations

from tidegate.core.errors import CallerError, InvalidValue, TidegateError

FAILED = 1
# Typer uses the same code for an invalid command line.
WRONGLY_ASKED = 2
NOTHING_THERE = 3
INTERRUPTED = 130

_MEANINGS = {
    0: "done",
    FAILED: "it could not be done, or does not hold: nobody answers, nothing is called so, it is "
    "not allowed, it failed on the way; a promise is broken, a check says no",
    WRONGLY_ASKED: "it cannot be meant: the command line, a value in it, the settings, an "
    "agreement, or an application that cannot be imported. The same again ends the same, "
    "whatever runs",
    NOTHING_THERE: "there is nothing yet: no message, nothing hosted, nothing learned",
    INTERRUPTED: "interrupted",
}


class NoSuch(CallerError):
    """The named object does not exist at present; the name itself is valid."""

    name = "NO_SUCH"


class NotWritten(TidegateError):
    """A file could not be written."""

    name = "NOT_WRITTEN"


def exit_code_of(error: TidegateError) -> int:
    """Return the exit code for an error."""
    from tidegate.agreement.document import AgreementInvalid
    from tidegate.cli.settings.reader import SettingsInvalid
    from tidegate.fleet.announced_process import StartRefused

    is_wrongly_asked = (
        isinstance(error, SettingsInvalid | AgreementInvalid | StartRefused)
        # Subclasses of InvalidValue report conditions found at run time, and not invalid input.
        or type(error) is InvalidValue
    )
    return WRONGLY_ASKED if is_wrongly_asked else FAILED


def table() -> str:
    """Return a Markdown table of the exit codes, for the docs."""
    rows = [f"| {code} | {meaning} |" for code, meaning in _MEANINGS.items()]
    return "\n".join(["| exit code | |", "|---|---|", *rows])
