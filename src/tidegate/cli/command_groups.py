"""Which module has which command.

Whoever starts one command imports what that one needs: taking in all of them would take longer than
most of them run, and machines start workers by the dozen. `app.py` has them all, and the tests
compare.
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
    """The one that has the command; None where none is named, or one that there is not."""
    return _MODULES.get(words[0]) if words else None
