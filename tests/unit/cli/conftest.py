"""Commands in this process, without any node."""

from __future__ import annotations

from cli_fixtures import command_line, folder, queue

__all__ = ["command_line", "folder", "queue"]
