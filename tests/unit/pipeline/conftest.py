"""Lakes with a few rows; no Spark."""

from __future__ import annotations

from pipeline_fixtures import lake_of, refused_command

__all__ = ["lake_of", "refused_command"]
