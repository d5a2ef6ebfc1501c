"""The login of a client: from the URL, from arguments, or from the environment.

    TIDEGATE_USER, TIDEGATE_PASSWORD, TIDEGATE_PASSWORD_FILE

A password in the call or the URL takes precedence over a file, and a file over the environment. No
repr and no error shows a password.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidegate.core.errors import InvalidValue

USER_VARIABLE = "TIDEGATE_USER"
PASSWORD_VARIABLE = "TIDEGATE_PASSWORD"
PASSWORD_FILE_VARIABLE = "TIDEGATE_PASSWORD_FILE"


class Credentials:
    """A user name and its password."""

    __slots__ = ("password", "user")

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self.password = password

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ***)"


def find_credentials(
    user: str | None,
    password: str | None,
    password_file: str | os.PathLike[str] | None,
    environment: Mapping[str, str] = os.environ,
) -> Credentials | None:
    """Return the credentials to log in with; `None` means no login.

    A node without users accepts clients without a login. A user without a password, or a password
    without a user, raises `InvalidValue`.
    """
    user = user or environment.get(USER_VARIABLE)
    if not user:
        if password is not None or password_file is not None:
            raise InvalidValue("a password without a user: whose is it?")
        return None
    if password is None and password_file is not None:
        password = password_in(Path(password_file))
    if password is None:
        password = environment.get(PASSWORD_VARIABLE)
    if password is None and (named := environment.get(PASSWORD_FILE_VARIABLE)):
        password = password_in(Path(named))
    if password is None:
        raise InvalidValue(
            f"no password for user {user!r}: set {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}, "
            "or give password= or password_file="
        )
    return Credentials(user, password)


def password_in(file: Path) -> str:
    """Return the first line of a password file; raise `InvalidValue` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
        raise InvalidValue(f"the password file {file} cannot be read: {reason}") from None
