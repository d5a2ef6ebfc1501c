"""Models to report on."""

from __future__ import annotations

from report_fixtures import an_afternoon, knowledge_of

__all__ = ["an_afternoon", "knowledge_of"]
