"""A command with placeholders, as the user writes it: `ssh {host} systemctl stop tidegate@{id}`.

It is split into words as in a shell, and then the placeholders are replaced. A value therefore
never spreads over several words. There is no shell; users who need one write `sh -c '…'`. Passwords
are never among the values, because every user of a computer can read command lines.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping

from tidegate.core.complaint import meant
from tidegate.core.errors import InvalidValue

PLACEHOLDERS = {
    "id": "the number of the machine",
    "slots": "how many replicas it takes",
    "host": "the host that it is to be on",
    "fleet": "the name of the fleet (fleet.name)",
    "store_url_file": "a file that only this user can read, with the store's URL, or one a line",
}


class CommandTemplate:
    """A command with valid placeholders."""

    def __init__(self, text: str) -> None:
        """Parse the text; raise `InvalidValue` with the reason if it is no valid command."""
        try:
            self._words = shlex.split(text)
        except ValueError as failure:
            raise InvalidValue(f"{text!r} is no command: {failure}") from None
        if not self._words:
            raise InvalidValue("an empty text is no command")
        self.placeholders = {name for word in self._words for name in _names(word)}

    def words(self, values: Mapping[str, str]) -> list[str]:
        """Return the words of the command with these values."""
        return [word.format_map(values) for word in self._words]


def _names(word: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as failure:
        raise InvalidValue(
            f"{word!r}: {failure}. A brace that stands for itself is written twice"
        ) from None
    names = []
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in PLACEHOLDERS or form or conversion:
            raise InvalidValue(
                f"{{{name}}} is no placeholder{meant(name, PLACEHOLDERS)} (a brace that stands "
                "for itself is written twice)"
            )
        names.append(name)
    return names
