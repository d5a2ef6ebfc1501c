"""Selection of stores from options and settings, and connections to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.secrecy import without_secrets

if TYPE_CHECKING:
    from tidegate.cli.settings.settings import Settings
    from tidegate.storage.postgres import PostgresStore

Result = TypeVar("Result")

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="URL of the PostgreSQL that is the store. [default: as the settings say, else the "
        "one that runs in --data]",
    ),
]
StoreDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Data folder of a running `tidegate host` or `up`. [default: tidegate-data]"
    ),
]


def store_of(urls: Sequence[str], writers: int = 1) -> PostgresStore:
    """Return a store for the URLs, not yet open; the first URL has the catalogue."""
    from tidegate.storage.postgres import PostgresStore
    from tidegate.storage.several import SeveralStores

    if len(urls) > 1:
        return SeveralStores(urls, writers=writers)
    return PostgresStore(urls[0], writers=writers)


def named_stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the URLs named by options or settings; empty means the embedded PostgreSQL."""
    if store and data:
        raise InvalidValue("--store and --data: one of them; a store of its own has no data folder")
    if store and without_secrets(store) != store:
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            "TIDEGATE_STORE__URL instead of --store"
        )
    if store:
        return [store]
    return [] if data else settings.store.all_urls


def running_stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the URLs of the named stores, or of the running embedded PostgreSQL.

    Raise `Unavailable` if neither exists.
    """
    from tidegate.storage.embedded import running_url

    if named := named_stores(store, data, settings):
        return named
    folder = data or settings.store.data_folder
    found = running_url(folder)
    if found is None:
        raise Unavailable(
            f"no store runs in {folder}: start `tidegate host` or `tidegate up`, or name another "
            "with --data FOLDER or --store URL"
        )
    return [found]


@contextlib.asynccontextmanager
async def opened(urls: Sequence[str]) -> AsyncIterator[PostgresStore]:
    """Open the store for the duration of the context."""
    store = store_of(urls)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def ask_store(urls: Sequence[str], work: Callable[[PostgresStore], Awaitable[Result]]) -> Result:
    """Open the store, run `work` with it, and return the result."""

    async def asked() -> Result:
        async with opened(urls) as store:
            return await work(store)

    return asyncio.run(asked())
