"""The `tidegate` command: settings, wiring, and a module for each group of commands.

One command imports only its own module. Importing all modules would take longer than most commands
run, and machines start many workers. `app.py` imports all groups, and a test compares the two
lists.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec


def main() -> None:
    """Import the requested command and run it."""
    # An import needs no cleanup, and a traceback from the middle of an import helps no user. Until
    # the imports are complete, Ctrl-C ends the process at once.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    run = _imported()
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


def _imported() -> Callable[[], None]:
    """Return a function that runs the requested command, or all commands if it is unknown."""

    found = module_of(sys.argv[1:])
    if found is None:
        from tidegate.cli import app

        return app.run_app
    from importlib import import_module

    from tidegate.cli.command_line import new_app, run

    one = new_app()
    module, _, register = found.partition(":")
    getattr(import_module(module), register)(one)
    return lambda: run(one)


COMMANDS = {
    "tidegate.cli.serve:register_serving": ("up", "node"),
    "tidegate.cli.serve:register_machines": ("machine", "fleet"),
    "tidegate.cli.worker:register": ("worker",),
    "tidegate.cli.settings:register": ("config",),
    "tidegate.cli.users:register": ("user",),
    "tidegate.demo:register": ("demo",),
    "tidegate.cli.serve:register_console": ("console",),
    "tidegate.cli.status:register_status": ("status", "ping", "nodes"),
    "tidegate.cli.queues:register_queues": ("queues", "create", "delete", "purge"),
    "tidegate.cli.messages:register": ("put", "get", "peek"),
    "tidegate.cli.queues:register_policies": ("policy", "pause", "resume", "dead", "redrive"),
    "tidegate.cli.messages:register_topics": (
        "topics",
        "topic",
        "publish",
        "subscribe",
        "unsubscribe",
    ),
    "tidegate.cli.scaling:register_steering": ("move", "prefetch"),
    "tidegate.cli.scaling:register_scaling": ("scale", "queue"),
    "tidegate.cli.explain:register": ("explain",),
    "tidegate.cli.tune:register": ("tune",),
    "tidegate.cli.rabbitmq:register": ("steer",),
    "tidegate.cli.host:register": ("host",),
    "tidegate.cli.door:register": ("door",),
    "tidegate.cli.services:register_services": ("deploy", "undeploy", "services"),
    "tidegate.cli.services:register_override": ("override",),
    "tidegate.cli.agreements:register_sla": ("sla",),
    "tidegate.cli.status:register_top": ("top",),
    "tidegate.cli.agreements:register_agreements": ("agreement",),
    "tidegate.cli.learn:register_learn": ("learn",),
    "tidegate.cli.learn:register_watch": ("watch",),
    "tidegate.cli.learn:register_report": ("report",),
    "tidegate.cli.simulate:register": ("simulate",),
    "tidegate_lab.commands:register_bench": ("bench",),
    "tidegate_lab.commands:register_lab": ("lab",),
}
_MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}


def module_of(words: Sequence[str]) -> str | None:
    """Return `module:function` of what registers the command; None if there is none."""
    found = _MODULES.get(words[0]) if words else None
    return found if found and is_installed(found) else None


def is_installed(place: str) -> bool:
    """Return whether the package of `module:function` is there: the lab is not published."""
    return find_spec(place.partition(".")[0]) is not None
