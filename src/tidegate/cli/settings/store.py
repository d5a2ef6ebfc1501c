"""The section [store], with a check of the keys that belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from tidegate.cli.settings.field import Between


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are stored: your PostgreSQL servers, or an embedded one."""

    url: str | None = None
    urls: list[str] = []
    data: str = "tidegate-data"
    # Connections per node for writing messages; 0 means as many as `node.writers`.
    connections: Annotated[int, Between(0, 64)] = 0

    @property
    def all_urls(self) -> list[str]:
        """The URLs of all stores; empty means the embedded PostgreSQL."""
        return self.urls or ([self.url] if self.url else [])

    @property
    def data_folder(self) -> Path:
        """The data folder of the embedded PostgreSQL."""
        return Path(self.data).expanduser()


def store_complaints(store: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if store.get("url") and store.get("urls"):
        return ["store.url and store.urls are both set: use one of them"]
    return []
