"""The embedded PostgreSQL with real processes: started, held, killed, and started again."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from made_database import UNSYNCED, copy_of_database, quick_folder
from waiting import eventually

from tidegate.storage import postgres_server
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres_server import (
    DataFolderHeld,
    DataFolderUnusable,
    EmbeddedPostgresFailed,
    processes_in,
)

HOLDER_PROGRAM = """
import sys, time
from pathlib import Path
from tidegate.storage.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    # Not tmp_path: as root PostgreSQL has an account of its own, which must be let through to it,
    # and another pytest that starts meanwhile closes pytest's common folder again.
    path = quick_folder("test")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    """A data folder with a database in it."""
    return copy_of_database(empty_folder / "data")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[EmbeddedPostgres, Path]]:
    """One server, with a port, for the tests that only look at it; and its folder."""
    path = quick_folder("test")
    with EmbeddedPostgres(copy_of_database(path / "data"), port=0, settings=UNSYNCED) as server:
        yield server, path / "data"
    shutil.rmtree(path)


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder; its first line is the pid of its PostgreSQL."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLDER_PROGRAM,
            str(folder),
            "store=postgresql://me:hunter2@there/x",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def postgres_pid(holder: subprocess.Popen[str]) -> int:
    assert holder.stdout is not None
    return int(holder.stdout.readline())


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def write_a_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table kept (value int)")
        connection.execute("insert into kept values (42)")


def read_the_row(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select value from kept").fetchone()
    assert row is not None
    return int(row[0])


def test_embedded_postgres_starts_and_leaves_nothing_when_stopped(empty_folder: Path) -> None:
    folder = empty_folder
    with EmbeddedPostgres(folder) as server:
        write_a_row(server.url)
        pid = server.pid
        assert server.is_running()
        assert os.getpgid(pid) != os.getpgrp(), "Ctrl-C would hit it before us"
        assert server.join_url is None

    assert not server.is_running()
    assert not is_alive(pid)
    assert processes_in(folder / "database") == set()


def test_committed_row_survives_a_restart_of_postgres(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    write_a_row(server.start())
    server.stop()

    url = server.start()

    assert read_the_row(url) == 42
    server.stop()


def test_starting_or_stopping_twice_does_nothing_more(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    server.stop()
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()


def test_a_second_holder_is_told_who_holds_the_folder(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    postgres_pid(holder)

    with pytest.raises(DataFolderHeld) as refused:
        EmbeddedPostgres(folder).start()

    assert refused.value.holder is not None
    assert refused.value.holder.pid == holder.pid
    assert str(holder.pid) in str(refused.value)
    assert "python" in str(refused.value)
    assert refused.value.holder.since in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_second_holder_in_the_same_process_is_refused_too(
    running: tuple[EmbeddedPostgres, Path],
) -> None:
    server, folder = running
    with pytest.raises(DataFolderHeld, match=str(os.getpid())):
        EmbeddedPostgres(folder).start()
    assert server.is_running()


def test_a_killed_server_comes_back_with_everything_committed(folder: Path) -> None:
    with EmbeddedPostgres(folder, port=0) as server:
        write_a_row(server.url)
        url, join_url, pid = server.url, server.join_url, server.pid
        assert server.ensure_running() is False

        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not server.is_running())

        assert server.ensure_running() is True
        assert server.pid != pid
        assert (server.url, server.join_url) == (url, join_url), "clients must find it again"
        assert read_the_row(url) == 42


def test_a_killed_server_comes_back_though_a_backend_is_still_busy(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            backend = connection.info.backend_pid
            # A stopped backend cannot notice that its postmaster is gone.
            os.kill(backend, signal.SIGSTOP)
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: not server.is_running())
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(postgres_server, "STOP_FAST_S_MAX", 0.1)
                patch.setattr(postgres_server, "STOP_IMMEDIATE_S_MAX", 0.1)

                assert server.ensure_running() is True

        assert not is_alive(backend)
        write_a_row(server.url)


def test_when_the_holder_is_killed_its_server_ends_too(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    pid = postgres_pid(holder)

    holder.kill()

    eventually(lambda: not is_alive(pid))
    with EmbeddedPostgres(folder) as server:
        write_a_row(server.url)


def test_a_server_that_outlived_its_holder_is_stopped_first(
    folder: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "STOP_FAST_S_MAX", 0.2)
    monkeypatch.setattr(postgres_server, "STOP_IMMEDIATE_S_MAX", 0.2)
    pid = postgres_pid(holder)
    os.kill(pid, signal.SIGSTOP)  # so it cannot follow the kernel's wish to end with its holder
    holder.kill()
    holder.wait()
    assert is_alive(pid)

    with EmbeddedPostgres(folder) as server:
        assert not is_alive(pid)
        write_a_row(server.url)


def test_a_stale_pid_file_that_names_a_living_stranger_is_no_obstacle(folder: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    (folder / "database" / "postmaster.pid").write_text(f"{stranger.pid}\n{folder}/database\n")

    with EmbeddedPostgres(folder) as server:
        write_a_row(server.url)

    assert stranger.poll() is None, "the stranger must be left alone"
    stranger.kill()
    stranger.wait()


def test_a_start_that_was_killed_while_making_the_database_is_made_good(
    empty_folder: Path,
) -> None:
    folder = empty_folder
    (folder / "database.unfinished").mkdir()
    (folder / "database.unfinished" / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(folder) as server:
        write_a_row(server.url)


def test_a_path_too_long_for_a_socket_works(empty_folder: Path) -> None:
    deep = empty_folder / ("d" * 100) / ("e" * 100)
    deep.parent.mkdir()
    copy_of_database(deep)

    with EmbeddedPostgres(deep) as server:
        write_a_row(server.url)
        socket_folder = server._socket_folder
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700

    assert not socket_folder.exists()


def test_a_socket_folder_that_anybody_may_enter_is_refused(folder: Path) -> None:
    (folder / "socket").mkdir(exist_ok=True)
    (folder / "socket").chmod(0o777)

    with pytest.raises(EmbeddedPostgresFailed, match="private"):
        EmbeddedPostgres(folder).start()


def test_the_socket_is_for_its_owner_only(running: tuple[EmbeddedPostgres, Path]) -> None:
    _, folder = running
    assert stat.S_IMODE((folder / "socket").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "database").stat().st_mode) == 0o700


def test_over_tcp_only_the_role_with_its_password_gets_in(
    running: tuple[EmbeddedPostgres, Path],
) -> None:
    server, folder = running
    assert server.join_url is not None
    with psycopg.connect(server.join_url) as connection:
        row = connection.execute(
            "select current_user, rolsuper from pg_roles where rolname = current_user"
        )
        assert row.fetchone() == ("tidegate", False)
    password = (folder / "password").read_text()
    for url in (
        server.join_url.replace(password, "wrong"),
        server.join_url.replace(f":{password}", ""),
        server.join_url.replace("//tidegate", "//postgres"),
    ):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)

    command = Path(f"/proc/{server.pid}/cmdline").read_text()

    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    assert password not in command
    assert password not in server.log_path.read_text()


def test_a_lost_password_is_replaced(folder: Path) -> None:
    (folder / "password").unlink()

    with EmbeddedPostgres(folder, port=0) as server:
        assert server.join_url is not None
        psycopg.connect(server.join_url).close()


def test_embedded_postgres_outlives_the_starting_thread(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()

    write_a_row(server.url)

    assert server.is_running()
    server.stop()


def test_a_bad_setting_is_reported_with_what_postgres_said(folder: Path) -> None:
    with pytest.raises(EmbeddedPostgresFailed, match="shared_bufers"):
        EmbeddedPostgres(folder, settings={"shared_bufers": "1GB"}).start()

    with (
        EmbeddedPostgres(folder, settings={"work_mem": "5MB"}) as server,
        psycopg.connect(server.url) as connection,
    ):
        assert connection.execute("show work_mem").fetchone() == ("5MB",)


def test_a_database_of_another_version_is_refused(folder: Path) -> None:
    (folder / "database" / "PG_VERSION").write_text("16\n")

    with pytest.raises(EmbeddedPostgresFailed, match="PostgreSQL 16"):
        EmbeddedPostgres(folder).start()


def test_a_folder_that_cannot_be_one_is_refused(empty_folder: Path) -> None:
    (empty_folder / "file").write_text("")

    with pytest.raises(DataFolderUnusable, match="file"):
        EmbeddedPostgres(empty_folder / "file").start()


def test_the_callers_own_postgres_environment_does_not_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGUSER", "nobody")

    with EmbeddedPostgres(folder) as server:
        write_a_row(server.url)
