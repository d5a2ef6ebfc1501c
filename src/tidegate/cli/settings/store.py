"""The section [store], and what in it goes together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from tidegate.cli.settings.field import Between


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are kept: PostgreSQL servers of yours, or else an embedded one."""

    url: str | None = None
    urls: list[str] = []
    data: str = "tidegate-data"
    # Connections of a node that write messages; 0 for as many as it has writers.
    connections: Annotated[int, Between(0, 64)] = 0

    @property
    def all_urls(self) -> list[str]:
        """Every store that is named; none means the embedded one."""
        return self.urls or ([self.url] if self.url else [])

    @property
    def data_folder(self) -> Path:
        """The data folder of the embedded PostgreSQL."""
        return Path(self.data).expanduser()


def store_complaints(store: dict[str, Any]) -> list[str]:
    """What is wrong with the section as a whole."""
    if store.get("url") and store.get("urls"):
        return ["store.url and store.urls are both set: use one of them"]
    return []
