"""A store whose disk is full, as PostgreSQL says it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

FULL_FOR_EVER = 1_000_000


@contextlib.contextmanager
def without_room(url: str, doing: str, times: int = FULL_FOR_EVER) -> Iterator[None]:
    """A store whose disk is full for the first few of these statements."""
    with psycopg.connect(url, autocommit=True) as connection:
        # What a sequence has given out is not taken back with a transaction.
        connection.execute(
            f"""
            create sequence refusals;
            create function refuse() returns trigger language plpgsql as $$
            begin
                if nextval('refusals') <= {times} then
                    raise exception 'no space left on device' using errcode = 'disk_full';
                end if;
                return coalesce(new, old);
            end $$;
            create trigger full_disk before {doing} for each row execute function refuse()
            """.encode()
        )
        try:
            yield
        finally:
            connection.execute(b"drop function refuse cascade; drop sequence refusals")
