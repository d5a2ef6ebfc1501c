"""The system account of PostgreSQL: the current one, or its own if Tidegate runs as root.

PostgreSQL refuses to run as root. It then gets a system account that is used for nothing else. That
account owns only PostgreSQL's folders, and may enter but not list or read the folders above them.
"""

from __future__ import annotations

import logging
import os
import pwd
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tidegate.core.errors import TidegateError

ACCOUNT_NAME = "pgserver"

log = logging.getLogger(__name__)


class AccountUnusable(TidegateError):
    """PostgreSQL cannot run under the account that it would have to use."""

    name: ClassVar[str] = "ACCOUNT_UNUSABLE"


@dataclass(frozen=True)
class PostgresAccount:
    """The system account that owns the database files and runs the server."""

    user_id: int
    group_id: int

    @classmethod
    def for_folder(cls, database_folder: Path) -> PostgresAccount:
        """Return the account for a database folder.

        The owner of an existing database. For a new one the current user or, for root, an account
        of its own. Raises `AccountUnusable` if that is not possible.
        """
        ours = os.geteuid()
        if database_folder.exists():
            owner = database_folder.stat()
            if ours not in (0, owner.st_uid):
                raise AccountUnusable(
                    f"{database_folder} belongs to user {owner.st_uid}, we are {ours}. "
                    "Run as that user, or name another data folder."
                )
            if owner.st_uid != 0:
                return cls(owner.st_uid, owner.st_gid)
        if ours != 0:
            return cls(ours, os.getegid())
        entry = _own_account()
        return cls(entry.pw_uid, entry.pw_gid)

    @property
    def is_ours(self) -> bool:
        """Whether PostgreSQL runs under the account of this process."""
        return self.user_id == os.geteuid()

    def own(self, path: Path) -> None:
        """Make the account the owner of a file or folder."""
        if not self.is_ours:
            os.chown(path, self.user_id, self.group_id)

    def let_through_to(self, path: Path) -> None:
        """Let the account enter every folder above the path."""
        if self.is_ours:
            return
        for folder in path.parents:
            status = folder.stat()
            if status.st_uid != self.user_id and not status.st_mode & stat.S_IXOTH:
                log.info("letting PostgreSQL pass through a folder", extra={"folder": str(folder)})
                folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)

    def let_read(self, tree: Path) -> None:
        """Let the account read and run the files below a folder."""
        if self.is_ours:
            return
        self.let_through_to(tree)
        for path in (tree, *tree.rglob("*")):
            if path.is_symlink():
                continue
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
            if wanted != mode:
                path.chmod(wanted)


def _own_account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        pass
    command = ["useradd", "--system", "--no-create-home", "--user-group"]
    try:
        subprocess.run([*command, ACCOUNT_NAME], check=True, capture_output=True, text=True)
        return pwd.getpwnam(ACCOUNT_NAME)
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        raise AccountUnusable(
            f"PostgreSQL does not run as root, and its account {ACCOUNT_NAME!r} could not be made "
            f"({detail}). Make one with useradd, or run as another user."
        ) from error
