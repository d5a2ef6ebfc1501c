"""The section [pipeline]."""

from __future__ import annotations

from pathlib import Path

import msgspec


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is learned from, and where to."""

    # Not set: `knowledge` in the store's data folder.
    knowledge: str | None = None
    # Agreements: files, or folders of them.
    agreements: list[str] = []

    @property
    def agreement_places(self) -> list[Path]:
        return [Path(place).expanduser() for place in self.agreements]
