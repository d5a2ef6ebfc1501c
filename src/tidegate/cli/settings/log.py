"""The section [log]."""

from __future__ import annotations

from typing import Literal

import msgspec


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The level and the format of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
