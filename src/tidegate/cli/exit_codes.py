"""How a command ends: one rule for all of them, which docs/reference/commands.md is made from.

Whoever wrote something wrong has to write it otherwise (2); whoever wrote it well may have to wait,
to start something, or to live with the answer (1).
"""

from __future__ import annotations

from tidegate.core.errors import CallerError, InvalidValue, TidegateError

FAILED = 1
# What typer ends with, too, when it cannot read a command line.
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
    """Nothing is called so, at the moment: as with queues, the words are right."""

    name = "NO_SUCH"


class NotWritten(TidegateError):
    """What was to be kept in a file cannot be kept there."""

    name = "NOT_WRITTEN"


def exit_code_of(error: TidegateError) -> int:
    """What a command ends with that this error ends."""
    from tidegate.agreement.document import AgreementInvalid
    from tidegate.cli.settings.reader import SettingsInvalid
    from tidegate.fleet.announced_process import StartRefused

    is_wrongly_asked = (
        isinstance(error, SettingsInvalid | AgreementInvalid | StartRefused)
        # Its subclasses tell of what they found, and not of what was written.
        or type(error) is InvalidValue
    )
    return WRONGLY_ASKED if is_wrongly_asked else FAILED


def table() -> str:
    """All of them, for the docs."""
    rows = [f"| {code} | {meaning} |" for code, meaning in _MEANINGS.items()]
    return "\n".join(["| exit code | |", "|---|---|", *rows])
