"""The section [pipeline]."""

from __future__ import annotations

from pathlib import Path

import msgspec


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of `learn`, and the folder of its results."""

    # None means `knowledge` in the store's data folder.
    knowledge: str | None = None
    # Files or folders of agreements.
    agreements: list[str] = []

    @property
    def agreement_places(self) -> list[Path]:
        return [Path(place).expanduser() for place in self.agreements]
