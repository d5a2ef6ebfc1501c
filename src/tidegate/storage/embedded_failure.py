"""The error of the embedded PostgreSQL."""

from __future__ import annotations

from typing import ClassVar

from tidegate.core.errors import TidegateError


class EmbeddedPostgresFailed(TidegateError):
    """The embedded PostgreSQL did not do what was asked; its log says why."""

    name: ClassVar[str] = "EMBEDDED_POSTGRES_FAILED"
