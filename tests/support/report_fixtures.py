"""Knowledge to report on: an empty folder to fill, and an afternoon with a story."""

from __future__ import annotations

from pathlib import Path

import pytest
from afternoon import afternoon
from knowledge_of import KnowledgeOf


@pytest.fixture
def knowledge_of(tmp_path: Path) -> KnowledgeOf:
    return KnowledgeOf(tmp_path / "knowledge")


@pytest.fixture(scope="session")
def an_afternoon(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeOf:
    """Written once; tests only read it."""
    knowledge = afternoon(tmp_path_factory.mktemp("afternoon"))
    knowledge.write()
    return knowledge
