"""Numbered SQL files, each applied once. Nodes that start at the same time take turns."""

from __future__ import annotations

import re
from importlib import resources

import psycopg

from tidegate.core.errors import InvalidValue

# Any number: the key of the lock for which starting nodes wait.
_ADVISORY_KEY = 7_411_000_001


def migration_files() -> list[tuple[int, str, str]]:
    """Return number, name and text of every migration, in order."""
    found = []
    for entry in (resources.files("tidegate.storage") / "sql").iterdir():
        numbered = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if numbered:
            found.append((int(numbered[1]), numbered[2], entry.read_text(encoding="utf-8")))
    return sorted(found)


async def migrate(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> list[int]:
    """Apply the missing migrations and return their numbers."""
    applied: list[int] = []
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_ADVISORY_KEY,))
        await connection.execute(
            "create table if not exists migration ("
            " number int primary key, name text not null, applied_at timestamptz default now())"
        )
        rows = await (await connection.execute("select number, name from migration")).fetchall()
        done = {row[0]: row[1] for row in rows}
        for number, name, text in migration_files():
            if number in done:
                if done[number] != name:
                    raise InvalidValue(
                        f"the store was made by another development version (its migration "
                        f"{number} is {done[number]!r}, ours {name!r}): use an empty one"
                    )
                continue
            await connection.execute(text.encode(), prepare=False)
            await connection.execute(
                "insert into migration (number, name) values (%s, %s)", (number, name)
            )
            applied.append(number)
    return applied
