"""One PostgreSQL for the files that do not kill it, with a database for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres_server import DATABASE, ROLE, SUPERUSER
from tidegate_lab.peers.servers import temporary_folder


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    with temporary_folder("faults") as folder, EmbeddedPostgres(folder / "data") as postgres:
        yield postgres


@pytest.fixture(scope="module")
def store(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """The URL of an empty database, and a folder: for one file."""
    name = Path(request.path).stem
    superuser = server.url.replace(f"{ROLE}@", f"{SUPERUSER}@")
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} owner {}").format(
                sql.Identifier(name), sql.Identifier(ROLE)
            )
        )
    with temporary_folder(name) as folder:
        yield server.url.replace(f"/{DATABASE}?", f"/{name}?"), folder
