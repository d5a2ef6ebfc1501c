"""The module of each command.

One command imports only its own module. Importing all modules would take longer than most commands
run, and machines start many workers. `app.py` imports all groups, and a test compares the two
lists.
"""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS = {
    "serving": ("up", "node"),
    "machines": ("machine", "fleet"),
    "working": ("worker",),
    "configuration": ("config",),
    "users": ("user",),
    "demo": ("demo",),
    "console": ("console",),
    "looking": ("status", "ping", "members"),
    "queues": ("queues", "create", "delete", "purge"),
    "messages": ("put", "get", "peek"),
    "policies": ("policy", "pause", "resume", "dead", "redrive"),
    "topics": ("topics", "topic", "publish", "subscribe", "unsubscribe"),
    "steering": ("move", "prefetch"),
    "scaling": ("scale", "queue"),
    "explaining": ("explain",),
    "tuning": ("tune",),
    "steer": ("steer",),
    "hosting": ("host",),
    "door": ("door",),
    "services": ("deploy", "undeploy", "services"),
    "holding": ("hold",),
    "sla": ("sla",),
    "top": ("top",),
    "agreements": ("agreement",),
    "learning": ("learn",),
    "watching": ("watch",),
    "reporting": ("report",),
    "simulating": ("simulate",),
    "benching": ("bench",),
    "experiments": ("lab",),
}
_MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}


def module_of(words: Sequence[str]) -> str | None:
    """Return the module of the command in the arguments; None if there is no known command."""
    return _MODULES.get(words[0]) if words else None
