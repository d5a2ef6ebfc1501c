"""What goes wrong with the embedded PostgreSQL, however carefully it is run."""

from __future__ import annotations

from typing import ClassVar

from tidegate.core.errors import TidegateError


class EmbeddedPostgresFailed(TidegateError):
    """The embedded PostgreSQL did not do what was asked; its log says why."""

    name: ClassVar[str] = "EMBEDDED_POSTGRES_FAILED"
