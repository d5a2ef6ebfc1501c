"""The module of each command.

One command imports only its own module. Importing all modules would take longer than most commands
run, and machines start many workers. `app.py` imports all groups, and a test compares the two
lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

COMMANDS = {
    "tidegate.cli.serving:register": ("up", "node"),
    "tidegate.cli.machines:register": ("machine", "fleet"),
    "tidegate.cli.working:register": ("worker",),
    "tidegate.cli.configuration:register": ("config",),
    "tidegate.cli.users:register": ("user",),
    "tidegate.cli.demo:register": ("demo",),
    "tidegate.cli.console:register": ("console",),
    "tidegate.cli.looking:register": ("status", "ping", "members"),
    "tidegate.cli.queues:register": ("queues", "create", "delete", "purge"),
    "tidegate.cli.messages:register": ("put", "get", "peek"),
    "tidegate.cli.policies:register": ("policy", "pause", "resume", "dead", "redrive"),
    "tidegate.cli.topics:register": ("topics", "topic", "publish", "subscribe", "unsubscribe"),
    "tidegate.cli.steering:register": ("move", "prefetch"),
    "tidegate.cli.scaling:register": ("scale", "queue"),
    "tidegate.cli.explaining:register": ("explain",),
    "tidegate.cli.tuning:register": ("tune",),
    "tidegate.cli.steer:register": ("steer",),
    "tidegate.cli.hosting:register": ("host",),
    "tidegate.cli.door:register": ("door",),
    "tidegate.cli.services:register": ("deploy", "undeploy", "services"),
    "tidegate.cli.holding:register": ("hold",),
    "tidegate.cli.sla:register": ("sla",),
    "tidegate.cli.top:register": ("top",),
    "tidegate.cli.agreements:register": ("agreement",),
    "tidegate.cli.learning:register": ("learn",),
    "tidegate.cli.watching:register": ("watch",),
    "tidegate.cli.reporting:register": ("report",),
    "tidegate.cli.simulating:register": ("simulate",),
    "tidegate.cli.benching:register": ("bench",),
    "tidegate.cli.experiments:register": ("lab",),
}
_MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}


def module_of(words: Sequence[str]) -> str | None:
    """Return `module:function` of what registers the command; None if there is none."""
    found = _MODULES.get(words[0]) if words else None
    return found if found and is_installed(found) else None


def is_installed(place: str) -> bool:
    """Return whether the package of `module:function` is there: the lab is not published."""
    return find_spec(place.partition(".")[0]) is not None
