"""What is recorded, typed, is also said in words."""

from __future__ import annotations

import pytest
from reference import COLUMN_TEXTS, COLUMN_TEXTS_OF_KIND, column_text, schema_tables

from tidegate.telemetry.schemas import KINDS


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_column_is_explained(kind) -> None:  # type: ignore[no-untyped-def]
    assert all(column_text(kind, column) for column in kind.columns.names)
    assert f"### {kind.name}\n" in schema_tables()


def test_explained_columns_are_recorded() -> None:
    columns = {column for kind in KINDS.values() for column in kind.columns.names}
    assert columns >= COLUMN_TEXTS.keys()
    assert all(column in KINDS[kind].columns.names for kind, column in COLUMN_TEXTS_OF_KIND)
