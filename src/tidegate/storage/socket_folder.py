"""The folder of PostgreSQL's Unix socket: a user who may enter it may use the database."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from tidegate.storage.embedded_failure import EmbeddedPostgresFailed
from tidegate.storage.postgres_account import PostgresAccount

# sun_path holds 108 bytes with its closing zero.
SOCKET_PATH_BYTES_MAX = 107


def socket_folder_of(data_folder: Path) -> Path:
    """Return the socket's folder: in the data folder, or a shorter path if that one is too long."""
    folder = data_folder / "socket"
    if len(os.fsencode(folder / ".s.PGSQL.65535")) <= SOCKET_PATH_BYTES_MAX:
        return folder
    # The same folder each time, so that old ones do not accumulate and nodes find it again.
    name = hashlib.sha256(os.fsencode(data_folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tidegate-{name}"


def make_socket_folder(folder: Path, account: PostgresAccount) -> None:
    """Create the folder, empty and private.

    Raises `EmbeddedPostgresFailed` if another user has created it.
    """
    account.let_through_to(folder)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        account.own(folder)
    # It may be in a temporary folder, where any user could have created it first.
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    if not private or status.st_uid != account.user_id:
        raise EmbeddedPostgresFailed(
            f"{folder} for PostgreSQL's socket is not a private folder of user "
            f"{account.user_id}; remove it."
        )
    for leftover in folder.iterdir():
        leftover.unlink()
