"""The database of the embedded PostgreSQL, its role and the role's password."""

from __future__ import annotations

import secrets
from pathlib import Path

import psycopg
from psycopg import sql

from tidegate.storage.data_folder import opener_0600
from tidegate.storage.embedded_server import DATABASE, ROLE


def password_in(path: Path) -> tuple[str, bool]:
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
