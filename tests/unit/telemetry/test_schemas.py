"""What is recorded, typed, is also said in words."""

from __future__ import annotations

import pytest

from tidegate.telemetry.schema_reference import SAYS, SAYS_OF, says, tables
from tidegate.telemetry.schemas import KINDS


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_column_is_explained(kind) -> None:  # type: ignore[no-untyped-def]
    assert all(says(kind, column) for column in kind.columns.names)
    assert f"### {kind.name}\n" in tables()


def test_nothing_is_explained_that_is_not_recorded() -> None:
    columns = {column for kind in KINDS.values() for column in kind.columns.names}
    assert columns >= SAYS.keys()
    assert all(column in KINDS[kind].columns.names for kind, column in SAYS_OF)
